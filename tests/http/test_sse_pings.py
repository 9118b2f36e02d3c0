"""Comments in streams that have nothing to say: they keep proxies from closing, and hold nothing. And clients that do
not read, and block ``send``.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pyllmcancel.server.dialect import PING
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

SHORT = 0.001  # seconds
MINE = {"x-request-id": "mine"}


def pingers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("ping ")]


@asynccontextmanager
async def held_in(phase: str, interval: float = SHORT) -> AsyncIterator[tuple[World, Exchange]]:
    """A stream whose request stays in this phase."""
    async with open_world(parallel=1, sse_ping_interval=interval) as world:
        world.hold()
        if phase == "waiting":
            await world.running_stream("neighbour")
            exchange = await world.submitted("mine", stream=True, headers=MINE)
        else:
            exchange = world.complete(stream=True, max_tokens=9, ignore_eos=True, headers=MINE)
            await world.step(2 if phase == "decode" else 0)
            await world.held()
            assert (await world.request("mine"))["phase"] == phase
        yield world, exchange


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_a_silent_stream_gets_comments_in_every_phase_and_its_client_is_noticed_when_it_leaves(
    phase: str,
) -> None:
    async with held_in(phase) as (world, exchange):
        already = exchange.body.count(PING)
        await exchange.until_body(PING * (already + 2) if phase != "waiting" else b": waiting, 0 ahead")
        await exchange.left()
        seen = await world.ended("mine")
        assert (seen["cancel_reason"], seen["phase"]) == ("disconnect", phase)
        assert len(pingers()) == (1 if phase == "waiting" else 0), "the neighbour's, if there is one"


async def test_comments_are_skipped_by_readers_and_end_before_the_stream_does() -> None:
    async with held_in("prefill") as (world, exchange):
        await exchange.until_body(PING)
        world.gate.open()
        await exchange.end()
        assert exchange.body.endswith(b"data: [DONE]\n\n")
        assert json.loads(exchange.events[-2])["choices"][0]["finish_reason"] == "length"
        assert pingers() == []


@pytest.mark.parametrize("fails", [False, True])
async def test_a_client_that_reads_no_comment_and_leaves_is_noticed(fails: bool) -> None:
    async with held_in("prefill") as (world, exchange):
        if fails:
            exchange.fail_sends(ConnectionResetError())
        else:
            exchange.stop_reading()
            await exchange.until_blocked()
            exchange.leave()
        seen = await world.ended("mine")
        assert (seen["cancel_reason"], seen["phase"]) == ("disconnect", "prefill")
        await exchange.end()
        assert pingers() == []


async def test_a_cancel_during_the_silence_ends_the_stream_with_its_error() -> None:
    async with held_in("prefill") as (world, exchange):
        await exchange.until_body(PING)
        await world.post("/v1/requests/mine/cancel")
        await exchange.end()
        assert json.loads(exchange.events[-1])["error"]["code"] == "explicit"
        assert pingers() == []


async def test_an_interval_of_0_sends_none() -> None:
    async with held_in("prefill", 0.0) as (_, exchange):
        await exchange.until_headers()
        assert pingers() == []


async def test_a_whole_answer_has_none() -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await world.computing(max_tokens=1)
        assert pingers() == []
        world.gate.open()
        await exchange.end()
        assert PING not in exchange.body


async def blocked_in_mid_stream(world: World) -> Exchange:
    """A stream of which one token was read, and the next one blocks `send`."""
    exchange = await world.running_stream("mine", max_tokens=100)
    await world.step()
    await exchange.next_event()
    exchange.stop_reading()
    await world.step()
    await exchange.until_blocked()
    await world.held()
    return exchange


@pytest.mark.parametrize("how", ["leaves", "is ended by the server", "cannot be sent to"])
async def test_a_client_that_is_gone_is_noticed_while_send_blocks(world: World, how: str) -> None:
    exchange = await blocked_in_mid_stream(world)
    if how == "leaves":
        exchange.leave()
    elif how == "is ended by the server":
        exchange.task.cancel()
    else:
        exchange.fail_sends(OSError("connection reset"))
        exchange.read_on()
    seen = await world.ended("mine")
    assert (seen["cancel_reason"], seen["completion_tokens"]) == ("disconnect", 2)
    if how == "leaves":
        assert not exchange.task.done(), "send still blocks: the computation has ended without it"
    else:
        with pytest.raises((asyncio.CancelledError, OSError)):
            await exchange.end()


async def test_a_cancel_ends_the_computation_while_send_blocks_and_is_told_when_the_client_reads(world: World) -> None:
    exchange = await blocked_in_mid_stream(world)
    assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
    exchange.read_on()
    await exchange.end()
    assert json.loads(exchange.events[-1])["error"]["code"] == "explicit"
