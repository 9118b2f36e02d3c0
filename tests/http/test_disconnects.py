"""A client that leaves, in every phase of its request, streaming and not, ends its own request and no other."""

import asyncio
import json

import pytest

from tests.support.http_world import COMPLETIONS, World, open_world

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])]

MINE = {"x-request-id": "mine"}


async def assert_cancelled(world: World, phase: str, completion_tokens: int = 0) -> None:
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"], seen["phase"]) == ("cancelled", "disconnect", phase)
    assert seen["completion_tokens"] == completion_tokens


async def test_without_the_whole_body_no_request(world: World, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pyllmcancel.access")
    exchange = world.begin("POST", COMPLETIONS, content=None, headers=MINE)
    exchange.body_arrives(b'{"prompt": "hel', more=True)
    await exchange.left()
    assert exchange.status == 0
    await assert_cancelled(world, "preparing")
    assert "mine" not in world.metrics.arrivals
    assert 'mine "POST /v1/completions" 499 ' in caplog.text


async def test_before_submit_the_request_is_accepted_and_cancelled(world: World, stream: bool) -> None:
    world.hold()
    await world.complete(stream=stream, headers=MINE).left()
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"]) == ("cancelled", "disconnect")
    assert seen["completion_tokens"] == 0


async def test_in_the_queue_it_is_dropped_without_a_launch_and_the_neighbour_goes_on(stream: bool) -> None:
    async with open_world(parallel=1) as world:
        neighbour = await world.running_stream("neighbour", max_tokens=4)
        await (await world.submitted("mine", stream=stream, headers=MINE)).left()
        # The neighbour's step is held all the while: the cancel did not wait for it.
        await assert_cancelled(world, "waiting")
        await world.step(4)
        await neighbour.end()
        assert neighbour.events[-1] == "[DONE]"
        text = "".join(json.loads(event)["choices"][0]["text"] for event in neighbour.events[:-1])
        assert text == bytes(world.model.greedy(b"neighbour", 4)).decode("utf-8", "replace")
        steps = (await world.get("/v1/steps")).json()["data"]
        assert {sequence["request"] for step in steps for sequence in step["sequences"]} == {"neighbour"}


@pytest.mark.parametrize(("phase", "n_steps"), [("prefill", 0), ("decode", 3)])
async def test_while_it_is_computed_the_step_is_aborted_and_no_next_one_contains_it(
    world: World, stream: bool, phase: str, n_steps: int
) -> None:
    exchange = await world.computing(stream=stream, max_tokens=100, ignore_eos=True, headers=MINE, n_steps=n_steps)
    await exchange.left()
    await assert_cancelled(world, phase, completion_tokens=n_steps)
    steps = (await world.get("/v1/steps")).json()["data"]
    assert [step["status"] for step in steps] == ["aborted", *["ok"] * n_steps]


async def test_after_the_end_nothing_changes(world: World, stream: bool) -> None:
    exchange = world.complete(stream=stream, max_tokens=3, headers=MINE)
    await exchange.end()
    exchange.leave()
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"], seen["completion_tokens"]) == ("finished", None, 3)


async def test_while_send_blocks_on_the_headers_it_is_noticed(world: World, stream: bool) -> None:
    """A whole answer blocks when its computation is over, a stream before it has begun: its first step is held."""
    if stream:
        world.hold()
    exchange = world.complete(stream=stream, max_tokens=3, headers=MINE)
    exchange.stop_reading()
    await exchange.until_blocked()
    exchange.leave()
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"]) == (("cancelled", "disconnect") if stream else ("finished", None))
    exchange.read_on()
    await exchange.end()


async def test_a_task_that_its_server_cancels_is_a_client_that_has_left(
    world: World, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pyllmcancel.access")
    exchange = await world.computing(stream=stream, max_tokens=100, ignore_eos=True, headers=MINE, n_steps=2)
    exchange.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange.task
    await assert_cancelled(world, "decode", completion_tokens=2)
    assert '"POST /v1/completions" 499 ' in caplog.text
