"""A client that does not read blocks ``send``; its request can be cancelled all the same."""

import asyncio
import json

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import World


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


async def test_leaving_is_noticed_while_send_blocks(world: World) -> None:
    exchange = await blocked_in_mid_stream(world)
    exchange.leave()
    seen = await world.ended("mine")
    assert (seen["cancel_reason"], seen["completion_tokens"]) == ("disconnect", 2)
    assert not exchange.task.done(), "send still blocks: the computation has ended without it"


async def test_a_cancel_ends_the_computation_while_send_blocks_and_is_told_when_the_client_reads(world: World) -> None:
    exchange = await blocked_in_mid_stream(world)
    assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
    exchange.read_on()
    await exchange.end()
    assert json.loads(exchange.events[-1])["error"]["code"] == "explicit"


async def test_a_server_that_ends_the_handler_while_send_blocks_cancels_the_request(world: World) -> None:
    exchange = await blocked_in_mid_stream(world)
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.end()
    assert (await world.ended("mine"))["cancel_reason"] == "disconnect"


async def test_send_that_fails_cancels_the_request(world: World) -> None:
    exchange = await blocked_in_mid_stream(world)
    exchange.fail_sends(OSError("connection reset"))
    exchange.read_on()
    with pytest.raises(OSError, match="connection reset"):
        await exchange.end()
    assert (await world.ended("mine"))["cancel_reason"] == "disconnect"
