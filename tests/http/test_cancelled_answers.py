"""The answer to the client of a cancelled request: never anything that looks complete."""

import json
from typing import Any

import pytest

from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.requests.request import Request
from pyllmcancel.step import LogitFault, StepStatus
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

STATUS = {"superseded": 499, "explicit": 499, "deadline": 504, "shutdown": 503}
MINE = {"x-request-id": "mine", "x-supersede": "key"}
reasons = pytest.mark.parametrize("reason", STATUS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def assert_error(answer: dict[str, Any], reason: str, usage: tuple[int, int]) -> None:
    error = answer["error"]
    assert set(answer) == {"error", "usage"}
    assert error["message"] == f"the request was cancelled ({reason})"
    assert (error["type"], error["param"], error["code"]) == ("request_cancelled", None, reason)
    assert error["request_id"] == "mine"
    prompt, completion = usage
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def assert_answer(exchange: Exchange, reason: str, usage: tuple[int, int], *, stream: bool) -> None:
    assert exchange.complete, "the answer is closed properly"
    assert exchange.headers["x-request-id"] == "mine"
    if stream:
        assert exchange.status == 200
        assert "[DONE]" not in exchange.events
        assert not any("error" in json.loads(event) for event in exchange.events[:-1])
        assert_error(json.loads(exchange.events[-1]), reason, usage)
        return
    assert exchange.status == STATUS[reason]
    assert_error(exchange.json(), reason, usage)
    if exchange.status == 503:
        assert int(exchange.headers["retry-after"]) >= 1
        assert "x-should-retry" not in exchange.headers
    else:
        assert exchange.headers["x-should-retry"] == "false"
        assert "retry-after" not in exchange.headers


@reasons
@streaming
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
async def test_in_every_phase_the_answer_says_why_it_was_cut(phase: str, reason: str, stream: bool) -> None:
    async with open_world(parallel=1) as world:
        if phase == "waiting":
            await world.running_stream("neighbour")
        world.hold()
        exchange = await world.submitted("mine", stream=stream, max_tokens=100, ignore_eos=True, headers=MINE)
        await world.step(3 if phase == "decode" else 0)
        await world.held()
        # A shutdown cancels the neighbour too, and aborts its held step.
        await world.bring_about(reason)
        await exchange.end()
        assert_answer(exchange, reason, (5, 3) if phase == "decode" else (0, 0), stream=stream)


@streaming
async def test_a_chat_is_cut_likewise(world: World, stream: bool) -> None:
    world.hold()
    exchange = world.chat(stream=stream, headers=MINE)
    await world.held()
    await world.bring_about("explicit")
    await exchange.end()
    assert_answer(exchange, "explicit", (0, 0), stream=stream)


@streaming
async def test_the_step_that_would_have_finished_it_does_not_make_it_complete(world: World, stream: bool) -> None:
    """A cancel that comes first wins, and the last token is not sent."""
    world.model.answers[b"hello"] = b"ab"
    # A survivor in the step, and a step nearly done: it is not aborted, so the answer's end is computed.
    await world.running_stream("neighbour", max_tokens=20)
    exchange = await world.submitted("mine", max_tokens=2, stream=stream, headers=MINE)
    await world.step(2)
    assert len((await world.held()).items) == 2
    world.gate.move_on(0.99)
    assert (await world.post("/v1/requests/mine/cancel?wait=false")).json()["outcome"] == "cancelled"
    await world.step()
    await exchange.end()
    assert_answer(exchange, "explicit", (5, 1), stream=stream)


@streaming
async def test_a_cancel_between_the_last_token_and_the_end_keeps_that_token_back(world: World, stream: bool) -> None:
    world.model.answers[b"hello"] = b"ab"

    def cancel_after_the_second(record: StepRecord) -> None:
        request = world.engine.registry.find("mine")
        if record.number == 2 and isinstance(request, Request):
            world.engine.cancel(request)

    world.metrics.on_step_done = cancel_after_the_second
    exchange = await world.complete(max_tokens=2, stream=stream, headers=MINE).end()
    assert_answer(exchange, "explicit", (5, 2), stream=stream)
    if stream:
        assert [json.loads(event)["choices"][0]["text"] for event in exchange.events[:-1]] == ["a"]


@streaming
async def test_choices_of_one_request_end_together(stream: bool) -> None:
    async with open_world(parallel=3) as world:
        world.hold()
        exchange = world.complete(n=3, max_tokens=50, ignore_eos=True, stream=stream, headers=MINE)
        await world.step(2)  # the leader's prompt, its siblings' prompts
        assert len((await world.held()).items) == 3
        await world.bring_about("explicit")
        await exchange.end()
        assert_answer(exchange, "explicit", (5, 3), stream=stream)
        assert world.context.open_seqs == []


@streaming
@pytest.mark.parametrize("of", ["request", "server"])
async def test_time_in_the_queue_counts_for_the_deadline(stream: bool, of: str) -> None:
    async with open_world(parallel=1, request_timeout=0.05 if of == "server" else 1e9) as world:
        await world.running_stream("neighbour", timeout=1000)
        own = {} if of == "server" else {"timeout": 0.001}
        exchange = await world.complete(stream=stream, headers=MINE, **own).end()
        assert_answer(exchange, "deadline", (0, 0), stream=stream)


@streaming
@pytest.mark.parametrize("of", ["request", "server"])
@pytest.mark.parametrize(("deadline", "status"), [("queue_timeout", 503), ("idle_timeout", 504)])
async def test_a_deadline_of_a_part_is_named(deadline: str, status: int, of: str, stream: bool) -> None:
    own, servers = ({deadline: 0.01}, {}) if of == "request" else ({}, {deadline: 0.01})
    async with open_world(parallel=1, **servers) as world:
        world.hold()
        if deadline == "queue_timeout":
            await world.running_stream("neighbour", queue_timeout=1000)
        exchange = world.complete(stream=stream, max_tokens=100, ignore_eos=True, headers=MINE, **own)
        await world.step(int(deadline == "idle_timeout"))
        await exchange.end()
        assert exchange.status == (200 if stream else status)
        error = json.loads(exchange.events[-1])["error"] if stream else exchange.json()["error"]
        assert (error["code"], error["detail"]) == ("deadline", deadline)
        assert stream or ("retry-after" in exchange.headers) == (status == 503)
        seen = await world.ended("mine")
        assert (seen["cancel_reason"], seen["detail"]) == ("deadline", deadline)


@streaming
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_full_queue_is_429_before_any_event(stream: bool, path: str) -> None:
    async with open_world(parallel=1, max_queue=1) as world:
        await world.running_stream("neighbour")
        waits = await world.submitted("waits", headers={"x-supersede": "waits"})
        prompt = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
        exchange = await world.post(path, prompt | {"stream": stream}, headers=MINE | {"x-session-id": "s"})
        assert exchange.status == 429
        assert int(exchange.headers["retry-after"]) >= 1
        assert "x-should-retry" not in exchange.headers
        assert exchange.headers["x-request-id"] == "mine"
        error = exchange.json()["error"]
        assert (error["type"], error["code"], error["request_id"]) == ("rate_limit_error", "queue_full", "mine")
        assert (await world.get("/v1/requests/mine")).status == 404
        assert [entry["id"] for entry in await world.requests()] == ["neighbour", "waits"]
        assert (await world.get("/v1/sessions")).json()["data"] == []
        # A newer request of its key takes the place of the one that waits.
        await world.submitted("newer", headers={"x-supersede": "waits"})
        assert (await waits.end()).failure == (499, "superseded")


@streaming
async def test_a_request_that_would_miss_its_deadline_is_refused_at_once(stream: bool) -> None:
    async with open_world(parallel=1, refuse_late=True) as world:
        await world.complete(max_tokens=9, ignore_eos=True).end()
        await world.running_stream("neighbour", max_tokens=5000)
        exchange = await world.complete(stream=stream, timeout=1e-9, headers=MINE).end()
        assert (exchange.status, exchange.json()["error"]["code"]) == (429, "too_late")
        assert int(exchange.headers["retry-after"]) >= 1
        assert (await world.get("/v1/requests/mine")).status == 404
        await world.submitted("mine", timeout=1000)


@streaming
async def test_a_drain_lets_a_request_finish_and_a_later_one_is_503(world: World, stream: bool) -> None:
    exchange = await world.computing(max_tokens=2, ignore_eos=True)
    world.gate.open()
    await world.shut_down(drain=10.0)
    assert (await exchange.end()).status == 200
    late = await world.complete(stream=stream).end()
    assert late.failure == (503, "shutdown")
    assert "retry-after" in late.headers
    assert "x-should-retry" not in late.headers


@streaming
@pytest.mark.parametrize(
    ("fault", "words"), [(StepStatus.FAILED_COMPUTE, "failed"), (LogitFault.NOT_FINITE, "not finite")]
)
async def test_a_failed_computation_is_an_error_with_usage_and_neighbours_go_on(
    world: World, fault: StepStatus | LogitFault, words: str, stream: bool
) -> None:
    neighbour = await world.running_stream("neighbour", max_tokens=3)
    world.context.faults[tuple(b"hello")] = fault
    exchange = await world.submitted("mine", stream=stream, headers=MINE)
    world.gate.open()
    await exchange.end()
    answer = exchange.json_events()[-1] if stream else exchange.json()
    assert exchange.status == (200 if stream else 500)
    error = answer["error"]
    assert (error["code"], error["request_id"], words in error["message"]) == ("request_failed", "mine", True), error
    assert answer["usage"]["completion_tokens"] == 0
    assert stream or exchange.headers["x-should-retry"] == "false"
    await neighbour.end()
    assert neighbour.events[-1] == "[DONE]"
    assert not any("error" in event for event in neighbour.json_events())
