"""Cancels that meet the end of a process, a request that comes meanwhile, or a family of which only the front knows."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.front import everywhere, relay
from pyllmcancel.server.origin import CONVERSATION_HEADERS
from tests.front.world import ANN, BOB, COMPLETIONS, KEYS, RouterWorld, open_router
from tests.support.http_asgi import Exchange
from tests.support.marks import mostly_long

pytestmark = pytest.mark.anyio


def same_names(world: RouterWorld) -> Exchange:
    """Begin a stream whose conversation is called like its request."""
    headers = {"x-request-id": "same", CONVERSATION_HEADERS[0]: "same"}
    body = {"model": "a", "prompt": "x", "stream": True, "until": "done"}
    return world.begin("POST", COMPLETIONS, body, headers=headers)


@pytest.mark.long
async def test_a_conversation_may_be_called_like_its_request(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", stream_keep=60.0, loads=("a",)) as world:
        waiting = same_names(world)
        await world.waits("same")
        assert (await world.post("/v1/requests/same/cancel")).json()["outcome"] == "cancelled"
        assert (await waiting.end()).status == 499
        world.let_load("a")
        (tmp_path / "done").touch()
        assert (await same_names(world).end()).status == 200
        assert not world.requests.registry.requests()


@pytest.mark.long
async def test_a_family_reaches_over_sessions_that_only_the_front_knows(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", loads=("b",)) as world:
        below = await world.streaming("a", "below", session_id="below", parent_session_id="between")
        between = await world.waiting("b", "between", session_id="between", parent_session_id="top")
        told = await world.post("/v1/sessions/top/cancel")
        assert {one["id"] for one in told.json()["requests"]} == {"between", "below"}
        assert (await between.end()).status == 499
        await below.end()


async def held_by_a_stopped_process(world: RouterWorld, **fields: Any) -> Exchange:
    """Send a request to a process that has read nothing of it, and reads no more."""
    assert (await world.complete("a").end()).status == 200
    os.kill(world.pid("a"), signal.SIGSTOP)
    request = world.complete("a", "mine", **fields)
    await world.until(lambda: all(one.process is not None for one in world.requests.coming(None)))
    return request


@pytest.mark.long
@pytest.mark.parametrize("wait", ["true", "false"])
async def test_a_cancel_right_after_a_kill_is_not_lost(world: RouterWorld, wait: str) -> None:
    request = await held_by_a_stopped_process(world)
    os.kill(world.pid("a"), signal.SIGKILL)
    time.sleep(0.05)  # noqa: ASYNC251 - the event loop is not to see the end of the process before the cancel
    told = await world.post(f"/v1/requests/mine/cancel?wait={wait}")
    assert (told.status, told.json()["outcome"]) == (200, "cancelled")
    assert (await request.end()).status == 499


@pytest.mark.long
async def test_a_request_that_outlives_its_client_is_sent_again(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", stream_keep=60.0) as world:
        request = await held_by_a_stopped_process(world, stream=True, until="never", keep_going=True)
        first = world.pid("a")
        request.leave()
        os.kill(first, signal.SIGKILL)
        await world.until(lambda: any(f"request {COMPLETIONS} mine" in line for line in world.log_of("a")))
        assert world.pid("a") != first


@pytest.mark.parametrize("second", mostly_long(["loads", "unseen"], "unseen"))
async def test_a_background_response_is_moved_and_cancelled(tmp_path: Path, world: RouterWorld, second: str) -> None:
    asked = {"model": "a", "input": "hello", "background": True}
    assert (await world.post("/v1/responses", asked, headers={"x-request-id": "mine"})).status == 200
    assert (await world.get("/v1/responses/resp_mine")).status == 200
    (tmp_path / f"a.{second}").touch()
    os.kill(world.pid("a"), signal.SIGKILL)
    if second == "loads":
        await world.until(lambda: world.starts("a") == 2)
    else:
        await world.until(lambda: world.log_of("a").count("request /v1/responses mine") == 2)
        assert world.log_of("a").count("again") == 1
    assert (await world.get("/v1/responses/resp_mine")).failure == (503, "preparing")
    cancel = world.begin("POST", "/v1/responses/resp_mine/cancel")
    if second == "unseen":
        await world.until(lambda: "command explicit" in world.log_of("a"))
    (tmp_path / f"a.{second}").unlink()
    told = (await cancel.end()).json()
    assert (cancel.status, told["id"], told["status"]) == (200, "resp_mine", "cancelled")
    assert await world.ended("mine") == ("cancelled", "explicit")


@pytest.mark.parametrize("by", mostly_long([signal.SIGSTOP, signal.SIGKILL], signal.SIGKILL))
async def test_a_background_response_is_cancelled_though_its_process_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld, by: signal.Signals
) -> None:
    for module in (relay, everywhere):
        monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.05)
    asked = {"model": "a", "input": "hello", "background": True}
    assert (await world.post("/v1/responses", asked, headers={"x-request-id": "mine"})).status == 200
    os.kill(world.pid("a"), by)
    told = (await world.post("/v1/responses/resp_mine/cancel")).json()
    assert (told["id"], told["model"], told["status"]) == ("resp_mine", "a", "cancelled")
    assert await world.ended("mine") == ("cancelled", "explicit")
    if by is signal.SIGSTOP:
        assert (await world.post("/v1/responses/resp_mine/cancel")).json() == told
        assert (await world.get("/v1/responses/resp_mine")).json() == told
        for method, path in (("GET", "?stream=true"), ("GET", "/input_items"), ("DELETE", ""), ("GET", "")):
            refused = await world.begin(method, f"/v1/responses/resp_mine{path}").end()
            assert refused.failure == (503, "replica_unreached")


@pytest.mark.parametrize("stored", mostly_long([False, True], True))
async def test_a_background_response_is_cancelled_for_its_owner_only(tmp_path: Path, stored: bool) -> None:
    async with open_router(tmp_path, "a", **KEYS) as world:
        asked = {"model": "a", "input": "hello", "background": True}
        await world.begin("POST", "/v1/responses", asked, headers=ANN | {"x-request-id": "mine"}).end()
        (tmp_path / "a.lacks").write_text("404 not_found")
        path = "/v1/responses/resp_mine/cancel"
        assert (await world.begin("POST", path, headers=BOB).end()).status == 404
        assert [one.id for one in world.requests.registry.requests()] == ["mine"]
        if stored:
            (tmp_path / "a.lacks").unlink()
        told = (await world.begin("POST", path, headers=ANN).end()).json()
        assert told == {"model": "a"} if stored else told["status"] == "cancelled"
        assert not world.requests.registry.requests()


async def test_a_request_whose_answer_is_complete_is_not_computed_again(world: RouterWorld) -> None:
    request = world.complete("a", "mine", ends_later=True)
    await request.until(lambda: request.complete)
    os.kill(world.pid("a"), signal.SIGKILL)
    assert (await request.end()).status == 200
    assert (await world.complete("a", "next").end()).status == 200
    assert world.log_of("a").count(f"request {COMPLETIONS} mine") == 1


async def test_an_error_that_no_client_waits_for_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, world: RouterWorld
) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("a mistake")

    asked = {"model": "a", "input": "hello", "background": True}
    assert (await world.post("/v1/responses", asked, headers={"x-request-id": "mine"})).status == 200
    monkeypatch.setattr(relay.Relay, "_conclude", fail)
    world.begin("POST", "/v1/requests/mine/cancel")
    await world.until(lambda: "request mine failed" in caplog.text)
    assert "LookupError: a mistake" in caplog.text


@pytest.mark.long
async def test_a_sessions_request_from_before_its_cancel_is_cancelled_when_its_body_comes(world: RouterWorld) -> None:
    await world.streaming("a", "known", session_id="turn")
    late = world.begin("POST", COMPLETIONS, content=None)
    await asyncio.sleep(0)  # it has arrived
    assert (await world.post("/v1/sessions/turn/cancel")).status == 200
    late.body_arrives(json.dumps({"model": "b", "session_id": "turn"}).encode())
    assert (await late.end()).failure == (499, "explicit")
    assert world.starts("b") == 0
    assert (await world.complete("a", session_id="turn").end()).status == 200


@pytest.mark.long
async def test_a_request_is_listed_and_cancelled_while_its_body_comes(world: RouterWorld) -> None:
    headers = {"x-request-id": "mine", "x-session-id": "turn"}
    slow = world.begin("POST", COMPLETIONS, content=None, headers=headers)
    await asyncio.sleep(0)  # it has arrived
    (entry,) = (await world.get("/v1/requests")).json()["data"]
    assert (entry["id"], entry["phase"], entry["session"]) == ("mine", "preparing", "turn")
    assert (await world.complete("a", "mine").end()).status == 400
    assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
    assert (await slow.end()).status == 499
    assert world.starts("a") == 0


@pytest.mark.long
async def test_what_computes_nothing_supersedes_nothing_and_has_not_failed(world: RouterWorld) -> None:
    await world.streaming("a", "mine", supersede="editor")
    headers = {"x-request-id": "count", "x-supersede": "editor"}
    assert (await world.begin("POST", "/tokenize", {"model": "b", "content": "x"}, headers=headers).end()).status == 200
    assert (await world.get("/v1/requests/mine")).json()["cancel_reason"] is None
    assert (await world.get("/v1/requests/count")).json()["status"] == "finished"


@pytest.mark.long
async def test_early_leavers_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: RouterWorld) -> None:
    monkeypatch.setattr(relay, "DEADLINE_SECONDS", 0.05)
    assert (await world.complete("a").end()).status == 200
    (tmp_path / "a.unseen").touch()
    for number in range(5):
        request = world.complete("a", f"r{number}", stream=True, until="never")
        await world.until(lambda: world.log_of("a")[-1].startswith(f"request {COMPLETIONS}"))
        await request.left()
    await world.until(lambda: not world.requests.registry.requests())
    (tmp_path / "a.unseen").unlink()
    for number in range(5):
        assert await world.ended(f"r{number}") == ("cancelled", "disconnect")


async def test_a_running_request_is_superseded_by_one_of_another_model(world: RouterWorld) -> None:
    assert (await world.complete("b").end()).status == 200
    older = await world.streaming("a", "older", supersede="editor")
    assert (await world.complete("b", "newer", supersede="editor").end()).status == 200
    assert "[DONE]" not in (await older.end()).events
    told = (await world.get("/v1/requests/older")).json()
    assert (told["cancel_reason"], told["superseded_by"]) == ("superseded", "newer")


@pytest.mark.long
async def test_a_refused_request_leaves_no_trace_and_its_id_is_free(tmp_path: Path, world: RouterWorld) -> None:
    assert (await world.complete("a").end()).status == 200
    (tmp_path / "a.lacks").write_text("400 invalid_request")
    assert (await world.complete("a", "mine").end()).status == 400
    assert (await world.get("/v1/requests/mine")).status == 404
    (tmp_path / "a.lacks").unlink()
    assert (await world.complete("a", "mine").end()).status == 200


@pytest.mark.long
async def test_an_id_in_use_is_refused_whatever_the_model(world: RouterWorld) -> None:
    await world.streaming("a", "mine")
    assert (await world.complete("b", "mine").end()).refusal == (400, "id")
    assert world.starts("b") == 0


async def test_a_complete_answer_that_a_cancel_overtook_looks_cut(tmp_path: Path, world: RouterWorld) -> None:
    """The process had ended the stream before it heard of the cancel."""
    stream = await world.streaming("a", "mine", until="done")
    (tmp_path / "a.stuck").touch()  # it acts on no commands, but computes
    cancel = world.begin("POST", "/v1/requests/mine/cancel")
    await world.until(lambda: "command explicit" in world.log_of("a"))
    (tmp_path / "done").touch()
    assert (await cancel.end()).json()["outcome"] == "cancelled"
    assert "[DONE]" not in (await stream.end()).events
    assert '"code": "explicit"' in stream.events[-1]
    (tmp_path / "a.stuck").unlink()


REPLIES = {
    ("GET", "/metrics"): 200,
    ("GET", "/slots?model=a"): 503,
    ("GET", "/v1/responses/resp_some"): 200,
}


@pytest.mark.long
@pytest.mark.parametrize(("method", "path"), REPLIES)
async def test_a_stuck_process_is_waited_for_a_moment_and_named(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld, method: str, path: str
) -> None:
    monkeypatch.setattr(everywhere, "DEADLINE_SECONDS", 3.0)
    for model in ("a", "b"):
        assert (await world.complete(model).end()).status == 200
    os.kill(world.pid("a"), signal.SIGSTOP)
    told = await world.begin(method, path).end()
    assert told.status == REPLIES[method, path]
    assert told.headers.get("x-unreached") == "a"
    os.kill(world.pid("b"), signal.SIGSTOP)
    told = await world.begin(method, path).end()
    if path != "/metrics":
        message = "the models' processes do not answer"
        assert (told.status, told.json()["error"]["message"]) == (503, message)


async def test_a_stuck_process_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch, world: RouterWorld) -> None:
    """Its own request is cancelled all the same, and others do not notice."""
    monkeypatch.setattr(relay, "DEADLINE_SECONDS", 0.05)
    mine, _ = await world.streaming("a", "mine"), await world.streaming("b", "other")
    os.kill(world.pid("a"), signal.SIGSTOP)
    assert (await world.post("/v1/requests/nobody/cancel")).status == 404
    assert len((await world.get("/v1/requests")).json()["data"]) == 2
    assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
    assert '"code": "explicit"' in (await mine.end()).events[-1]
    assert (await world.post("/v1/requests/other/cancel")).json()["outcome"] == "cancelled"


@pytest.mark.parametrize("by", mostly_long(["cancel", "newer"], "newer"))
async def test_a_request_whose_client_does_not_read_ends_all_the_same(world: RouterWorld, by: str) -> None:
    """Its ending waits in the link, behind the answer."""
    stream = await world.streaming("a", "mine", supersede="editor", padding=60_000)
    stream.stop_reading()
    await stream.blocked.wait()
    if by == "cancel":
        assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
    else:
        assert (await world.complete("a", "newer", supersede="editor").end()).status == 200
        await world.until(lambda: [one.id for one in world.requests.registry.requests()] == [])
    assert (await world.get("/v1/requests/mine")).json()["status"] == "cancelled"
    stream.read_on()
    assert '"error"' in (await stream.end()).events[-1]


async def test_an_answer_leaves_a_silent_process_though_its_client_does_not_read(world: RouterWorld) -> None:
    stream = await world.streaming("a", "mine", padding=60_000)
    stream.stop_reading()
    await stream.blocked.wait()
    world.keeper.processes["a"].give_away(silent=True)
    await world.until(lambda: not world.requests.registry.requests())  # no process could go on with it
    assert (await world.get("/v1/requests/mine")).json()["status"] == "error"
    stream.read_on()
    assert '"code": "model_ended"' in (await stream.end()).events[-1]


@pytest.mark.long
async def test_a_stuck_process_makes_room_for_another_model(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", most=1) as world:
        assert (await world.complete("a").end()).status == 200
        os.kill(world.pid("a"), signal.SIGSTOP)
        assert (await world.complete("b").end()).status == 200
