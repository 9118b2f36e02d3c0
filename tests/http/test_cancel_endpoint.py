"""``POST /v1/requests/{id}/cancel`` and ``POST /v1/sessions/{id}/cancel``: what they do, and what they say of it."""

import asyncio
import threading
import time
from typing import Any

import pytest

from pyllmcancel.requests.request import Request
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, LIMIT, World, open_world

MINE = {"x-request-id": "mine", "x-session-id": "session"}
USER = [{"role": "user", "content": "x"}]
FIELDS = {"id", "outcome", "reason", "phase", "cancel_latency_ms", "usage"}
targets = pytest.mark.parametrize("target", ["requests/mine", "sessions/session"])


async def cancel(world: World, target: str = "requests/mine") -> dict[str, Any]:
    answer = said(await world.served(f"/v1/{target}/cancel"))
    assert set(answer) == FIELDS
    return answer


def said(exchange: Exchange) -> dict[str, Any]:
    answer: dict[str, Any] = exchange.json()
    if "session" in answer:
        assert (answer["session"], answer["descendants"], answer["hold_seconds"]) == ("session", True, None)
        (answer,) = answer["requests"]
    return answer


@targets
async def test_it_answers_when_the_computation_has_stopped(world: World, target: str) -> None:
    exchange = await world.computing(max_tokens=50, ignore_eos=True, headers=MINE, n_steps=2)
    began = time.monotonic()
    answer = await cancel(world, target)
    took_ms = (time.monotonic() - began) * 1e3
    assert world.context.open_seqs == []
    assert (answer["id"], answer["outcome"], answer["reason"]) == ("mine", "cancelled", "explicit")
    assert (answer["phase"], answer["usage"]["completion_tokens"]) == ("decode", 2)
    assert 0 <= answer["cancel_latency_ms"] <= took_ms
    await exchange.end()


@targets
async def test_of_a_request_that_is_being_submitted_it_says_how_that_one_ended(
    world: World, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.hold()
    may_return, submit = threading.Event(), world.engine.submit

    def slow_submit(*arguments: Any, **options: Any) -> Request:
        request = submit(*arguments, **options)
        assert may_return.wait(LIMIT)
        return request

    monkeypatch.setattr("pyllmcancel.server.generate.is_laborious", lambda *_: True)
    monkeypatch.setattr(world.engine, "submit", slow_submit)
    exchange = world.complete(max_tokens=50, ignore_eos=True, headers=MINE)
    await world.held()
    assert [entry["id"] for entry in await world.requests()] == ["mine"], "once"
    answering = world.begin("POST", f"/v1/{target}/cancel")
    await world.cancelling("mine")
    may_return.set()
    answer = said(await answering.end())
    assert world.context.open_seqs == []
    assert (answer["outcome"], answer["reason"], answer["phase"]) == ("cancelled", "explicit", "prefill")
    assert (await world.ended("mine"))["cancel_reason"] == "explicit"
    assert (await exchange.end()).status == 499


@targets
async def test_it_waits_for_the_end_of_work_for_a_request_that_is_not_accepted_and_its_client_does_not(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(parallel=1) as world:
        await world.running_stream("neighbour")
        begun, may_go_on, fill = threading.Event(), threading.Event(), world.engine.fill

        def fill_slowly(*arguments: Any) -> None:
            begun.set()
            assert may_go_on.wait(LIMIT)
            fill(*arguments)

        monkeypatch.setattr("pyllmcancel.server.generate.is_laborious", lambda *_: True)
        monkeypatch.setattr(world.engine, "fill", fill_slowly)
        exchange = world.complete(max_tokens=50, ignore_eos=True, headers=MINE)
        assert await asyncio.to_thread(begun.wait, LIMIT)
        answering = world.begin("POST", f"/v1/{target}/cancel")
        assert (await exchange.end()).status == 499
        assert (await world.request("mine"))["status"] == "cancelling"
        assert not answering.task.done()
        may_go_on.set()
        answer = said(await answering.end())
        assert (answer["outcome"], answer["reason"], answer["phase"]) == ("cancelled", "explicit", "preparing")
        assert (await world.ended("mine"))["cancel_reason"] == "explicit"


@targets
async def test_while_a_survivors_step_goes_on_it_waits_with_wait_false_it_does_not(world: World, target: str) -> None:
    await world.running_stream("neighbour")
    await world.submitted("mine", max_tokens=50, ignore_eos=True, headers=MINE)
    await world.step(3)
    assert len((await world.held()).items) == 2
    world.gate.move_on(0.99)
    # So late in the step its neighbour's part is not worth redoing: it is let finish.
    at_once = said(await world.post(f"/v1/{target}/cancel?wait=false"))
    assert (at_once["outcome"], at_once["reason"], at_once["phase"]) == ("cancelled", "explicit", "decode")
    assert at_once["cancel_latency_ms"] is None
    waiting = world.begin("POST", f"/v1/{target}/cancel")
    assert [entry["status"] for entry in await world.requests()] == ["running", "cancelling"]
    assert not waiting.task.done()
    await world.step()
    assert said(await waiting.end())["outcome"] == "cancelled"


async def test_a_client_that_leaves_while_it_waits_undoes_nothing_and_the_first_reason_stays(world: World) -> None:
    await world.running_stream("neighbour")
    mine = await world.submitted("mine", max_tokens=50, ignore_eos=True, headers=MINE)
    await world.step(3)
    await world.held()
    world.gate.move_on(0.99)
    canceller = world.begin("POST", "/v1/requests/mine/cancel")
    await world.cancelling("mine")
    canceller.leave()
    world.expire("mine")
    answer = (await world.post("/v1/requests/mine/cancel?wait=false&hold=30")).json()
    assert (answer["outcome"], answer["reason"]) == ("cancelled", "explicit"), "a hold of a live one cancels it now"
    world.gate.open()
    assert (await mine.end()).status == 499
    await canceller.end()


async def test_after_the_end_it_is_already_finished_and_says_how(world: World) -> None:
    await world.complete(max_tokens=2, ignore_eos=True, headers=MINE).end()
    answer = await cancel(world)
    assert (answer["outcome"], answer["reason"], answer["phase"]) == ("already_finished", "length", "decode")
    assert (answer["cancel_latency_ms"], answer["usage"]["completion_tokens"]) == (None, 2)
    exchange = await world.computing(headers=MINE)
    first = await cancel(world)
    await exchange.end()
    assert await cancel(world) == first | {"outcome": "already_finished"}


async def test_an_unknown_id_is_404_and_nobodys_id_is_told_and_delete_cancels_too(world: World) -> None:
    exchange = await world.running_stream("somebody", max_tokens=100)
    for path in ("/v1/requests/nobody/cancel", "/v1/requests/nobody/cancel?wait=false", "/v1/sessions/x/cancel"):
        unknown = await world.post(path)
        assert (unknown.status, unknown.headers["x-should-retry"]) == (404, "false")
        assert b"somebody" not in unknown.body
    assert (await world.get("/v1/requests/nobody")).status == 404
    nobody, answer = [await world.begin("DELETE", f"/v1/requests/{name}").end() for name in ("nobody", "somebody")]
    told = answer.json()
    assert (nobody.status, told["id"], told["outcome"], told["reason"]) == (404, "somebody", "cancelled", "explicit")
    assert "explicit" in (await exchange.end()).events[-1]


async def test_of_a_session_without_a_live_request_nothing_is_cancelled(world: World) -> None:
    name = "file:///home/me/a.py"
    exchange = await world.computing(headers={"x-session-id": name})
    assert len((await world.post(f"/v1/sessions/{name}/cancel")).json()["requests"]) == 1
    assert (await exchange.end()).status == 499
    again = await world.post(f"/v1/sessions/{name}/cancel")
    nothing = {"session": name, "descendants": True, "requests": [], "hold_seconds": None}
    assert (again.status, again.json()) == (200, nothing)
    assert (await world.post("/v1/sessions/another/cancel")).failure == (404, "unknown_session")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_held_id_is_cancelled_on_arrival_and_only_once(world: World, stream: bool) -> None:
    held = await world.post("/v1/requests/mine/cancel?hold=30")
    assert held.status == 202
    assert held.json() == {"id": "mine", "outcome": "held", "hold_seconds": 30.0}
    assert (await world.complete(stream=stream, headers=MINE).end()).failure == (499, "explicit")
    assert (await world.get("/v1/steps")).json()["n_steps"] == 0, "it was never launched"
    again = await world.complete(max_tokens=1, headers=MINE).end()
    assert again.status == 200, "a hold is for one arrival"


async def test_a_held_session_has_its_next_requests_cancelled_on_arrival_and_no_others(world: World) -> None:
    held = await world.post("/v1/sessions/editor/cancel?hold=30")
    assert held.status == 202
    assert held.json() == {"session": "editor", "descendants": True, "requests": [], "hold_seconds": 30.0}
    for session, status in (("another", 200), ("editor", 499), ("editor", 499)):
        assert (await world.complete(max_tokens=1, session_id=session).end()).status == status


@pytest.mark.parametrize(
    ("path", "fields", "prefix"),
    [
        (COMPLETIONS, {"prompt": "x"}, "cmpl-"),
        (CHAT, {"messages": USER}, "chatcmpl-"),
        ("/v1/messages", {"messages": USER, "max_tokens": 8}, "msg_"),
        ("/v1/responses", {"input": "x"}, "resp_"),
    ],
)
async def test_the_id_in_an_answer_cancels_it(world: World, path: str, fields: dict[str, Any], prefix: str) -> None:
    world.hold()
    exchange = world.begin("POST", path, fields, headers=MINE)
    await world.held()
    assert (await world.request(f"{prefix}mine"))["id"] == "mine"
    assert (await world.post(f"/v1/requests/{prefix}mine/cancel")).json()["outcome"] == "cancelled"
    assert (await exchange.end()).status == 499


async def test_an_id_of_the_clients_own_that_looks_like_an_answers_is_not_mistaken(world: World) -> None:
    world.hold()
    world.complete(headers={"x-request-id": "cmpl-x"})
    other = await world.submitted("x")
    await world.added("cmpl-x")
    assert (await world.post("/v1/requests/cmpl-x/cancel?wait=false")).json()["id"] == "cmpl-x"
    assert not other.task.done()
    world.gate.open()
    assert (await other.end()).status == 200
