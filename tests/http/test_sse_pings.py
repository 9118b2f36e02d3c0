"""Comments in streams that have nothing to say: they keep proxies from closing, and hold nothing."""

import asyncio
import json

import pytest

from pyllmcancel.server.dialect import PING
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

SHORT = 0.001  # seconds
MINE = {"x-request-id": "mine"}


def pingers() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("ping ")]


async def held_in(world: World, phase: str) -> Exchange:
    """A stream whose request stays in this phase."""
    world.hold()
    if phase == "waiting":
        await world.running_stream("neighbour")
        return await world.submitted("mine", stream=True, headers=MINE)
    exchange = world.complete(stream=True, max_tokens=9, ignore_eos=True, headers=MINE)
    if phase == "decode":
        await world.step(2)
    await world.held()
    assert (await world.request("mine"))["phase"] == phase
    return exchange


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_a_silent_stream_gets_comments_in_every_phase(phase: str) -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await held_in(world, phase)
        already = exchange.body.count(PING)
        await exchange.until_body(PING * (already + 2) if phase != "waiting" else b": waiting, 0 ahead")


async def test_comments_are_skipped_by_readers_and_end_before_the_stream_does() -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await held_in(world, "prefill")
        await exchange.until_body(PING)
        world.gate.open()
        await exchange.end()
        assert exchange.body.endswith(b"data: [DONE]\n\n")
        assert json.loads(exchange.events[-2])["choices"][0]["finish_reason"] == "length"
        assert pingers() == []


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_a_client_that_leaves_is_noticed_as_without_them(phase: str) -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await held_in(world, phase)
        await exchange.until_body(PING)
        await exchange.left()
        seen = await world.ended("mine")
        assert (seen["cancel_reason"], seen["phase"]) == ("disconnect", phase)
        assert len(pingers()) == (1 if phase == "waiting" else 0), "the neighbour's, if there is one"


async def test_a_client_that_reads_no_comment_and_leaves_is_noticed() -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await held_in(world, "prefill")
        exchange.stop_reading()
        await exchange.until_blocked()
        exchange.leave()
        assert (await world.ended("mine"))["cancel_reason"] == "disconnect"
        await exchange.end()
        assert pingers() == []


async def test_a_comment_that_cannot_be_sent_tells_that_the_client_is_gone() -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await held_in(world, "prefill")
        exchange.fail_sends(ConnectionResetError())
        seen = await world.ended("mine")
        assert (seen["cancel_reason"], seen["phase"]) == ("disconnect", "prefill")
        await exchange.end()


async def test_a_cancel_during_the_silence_ends_the_stream_with_its_error() -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await held_in(world, "prefill")
        await exchange.until_body(PING)
        await world.post("/v1/requests/mine/cancel")
        await exchange.end()
        assert json.loads(exchange.events[-1])["error"]["code"] == "explicit"
        assert pingers() == []


async def test_an_interval_of_0_sends_none() -> None:
    async with open_world(parallel=1, sse_ping_interval=0.0) as world:
        await (await held_in(world, "prefill")).until_headers()
        assert pingers() == []


async def test_a_whole_answer_has_none() -> None:
    async with open_world(parallel=1, sse_ping_interval=SHORT) as world:
        exchange = await world.computing(max_tokens=1)
        assert pingers() == []
        world.gate.open()
        await exchange.end()
        assert PING not in exchange.body
