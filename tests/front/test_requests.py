"""Requests through the router: to the model that they name, through its load, and away again."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.front.replica import State
from pyllmcancel.front.upstream import Unread
from tests.front.world import ADMIN, ANN, BOB, COMPLETIONS, KEYS, MODEL, RouterWorld, open_router, sending
from tests.support.marks import mostly_long

pytestmark = pytest.mark.anyio


async def test_a_request_reaches_the_model_that_it_names(world: RouterWorld) -> None:
    first = await world.complete("b", "mine", max_tokens=3).end()
    assert first.status == 200
    told = first.json()
    assert told["model"] == "b"
    assert told["asked"] == {"prompt": "hello", "model": "b", "max_tokens": 3}
    assert told["headers"]["x-request-id"] == first.headers["x-request-id"] == "mine"
    assert told["headers"]["x-forwarded-for"] == "127.0.0.1"
    assert int(first.headers["x-model-load-ms"]) >= 0
    assert "x-model-load-ms" not in (await world.complete("b").end()).headers
    assert world.starts("a") == 0


@pytest.mark.long
async def test_the_default_is_the_first_and_an_alias_is_a_name(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", specs={"b": {"aliases": ("coder",)}}) as world:
        assert (await world.complete(None).end()).json()["model"] == "a"
        assert (await world.complete("coder").end()).json()["model"] == "b"


async def test_an_unknown_model_is_refused_with_those_there_are(world: RouterWorld) -> None:
    answer = await world.complete("c").end()
    assert answer.status == 404
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == "there is no model 'c'; there are: a, b"
    assert (await world.post(COMPLETIONS, {"model": 7})).status == 400
    messages = await world.post("/v1/messages", {"model": "c"})
    assert messages.json()["type"] == "error"  # in the shape of its API


@pytest.mark.long
async def test_a_client_that_does_not_read_stops_its_process_from_writing(world: RouterWorld) -> None:
    stream = await world.streaming("a", until="end")
    stream.stop_reading()
    await stream.blocked.wait()
    stream.leave()
    await world.until(lambda: world.log_of("a").count("left") == 1)
    stream.read_on()


async def test_the_last_to_leave_a_load_ends_it(world: RouterWorld) -> None:
    world.hold_loads("a")
    first, second = world.complete("a", "first"), world.complete("a", "second")
    await world.until(lambda: world.keeper.processes["a"].progress == 0.5 if world.starts("a") else False)
    assert await world.status("a") == {"value": "loading", "stage": "loading", "progress": 0.5}
    listed = (await world.get("/v1/requests")).json()["data"]
    assert [(one["id"], one["status"], one["phase"]) for one in listed] == [
        ("first", "waiting", "loading"),
        ("second", "waiting", "loading"),
    ]
    await first.left()
    assert world.keeper.replica("a").state is State.LOADING
    await second.left()
    assert world.keeper.replica("a").state is not State.LOADING  # at once
    await world.until_state("a", State.UNLOADED)
    assert not any(line.startswith("request") for line in world.log_of("a"))


@pytest.mark.long
async def test_a_load_that_was_asked_for_goes_on_without_requests(world: RouterWorld) -> None:
    world.hold_loads("a")
    assert (await world.post("/models/load", {"model": "a"})).json() == {"success": True}
    request = await world.waiting("a", "mine")
    await request.left()
    world.let_load("a")
    await world.until_state("a", State.LOADED)
    assert (await world.status("a")) == {"value": "loaded"}
    assert (await world.post("/models/load", {"model": "a"})).status == 400


@pytest.mark.parametrize("way", mostly_long(["post", "delete", "several", "filter", "session"], "session"))
async def test_a_request_that_waits_for_a_load_can_be_cancelled(world: RouterWorld, way: str) -> None:
    world.hold_loads("a")
    request = await world.waiting("a", "mine", session_id="turn", parent_session_id="chat")
    match way:
        case "post":
            told = (await world.post("/v1/requests/mine/cancel")).json()
        case "delete":
            told = (await world.begin("DELETE", "/v1/requests/mine").end()).json()
        case "several":
            told, unknown = (await world.post("/v1/requests/cancel", {"request_ids": ["mine", "no"]})).json()["data"]
            assert unknown == {"id": "no", "outcome": "unknown"}
        case "filter":
            (told,) = (await world.post("/v1/requests/cancel", {"session": "turn"})).json()["data"]
        case _:
            (told,) = (await world.post("/v1/sessions/chat/cancel")).json()["requests"]
    assert (told["id"], told["outcome"], told["reason"]) == ("mine", "cancelled", "explicit")
    assert (await request.end()).status == 499
    assert request.json()["error"]["code"] == "explicit"
    assert request.headers["x-should-retry"] == "false"
    assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "already_finished"
    await world.until_state("a", State.UNLOADED)


async def test_owners_neither_see_nor_cancel_each_others_waiting_requests(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", **KEYS) as world:
        world.hold_loads("a")
        request = world.begin("POST", COMPLETIONS, {"model": "a"}, headers=ANN | {"x-request-id": "mine"})
        await world.waits("mine")
        assert (await world.post("/v1/requests/mine/cancel", headers=BOB)).status == 404
        assert (await world.get("/v1/requests", headers=BOB)).json()["data"] == []
        assert len((await world.get("/v1/requests", headers=ADMIN)).json()["data"]) == 1
        assert (await world.get("/v1/requests/mine", headers=ANN)).json()["owner"] == "ann"
        assert (await world.get("/v1/requests")).status == 401
        for path in ("/models/load", "/models/unload"):
            assert (await world.post(path, {"model": "a"}, headers=BOB)).status == 403
        assert (await world.post("/models/unload", {"model": "a"}, headers=ADMIN)).status == 200
        assert (await request.end()).status == 503


@pytest.mark.long
async def test_too_many_requests_that_wait_are_refused(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", engine=EngineConfig(max_queue=1)) as world:
        world.hold_loads("a")
        await world.waiting("a", "first")
        assert (await world.complete("a").end()).failure == (429, "queue_full")


async def test_a_process_that_dies_ends_only_its_own_requests_and_is_back(tmp_path: Path, world: RouterWorld) -> None:
    mine, other = await world.streaming("a"), await world.streaming("b", until="end")
    os.kill(world.pid("a"), signal.SIGKILL)
    assert '"code": "model_ended"' in (await mine.end()).events[-1]
    assert "[DONE]" not in mine.events
    await world.until(lambda: world.starts("a") == 2)
    assert (await world.complete("a").end()).status == 200
    assert world.starts("a") == 2
    (tmp_path / "end").touch()
    assert (await other.end()).events[-1] == "[DONE]"


@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1 << 20])
async def test_a_request_that_a_killed_process_has_not_read_is_answered_by_the_next(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld, size: int
) -> None:
    assert (await world.complete("a").end()).status == 200
    os.kill(world.pid("a"), signal.SIGSTOP)  # the system takes connections for it
    with monkeypatch.context() as patched:
        sent = sending(patched)
        request = world.complete("a", "mine", padding="x" * size)
        await sent.wait()
    os.kill(world.pid("a"), signal.SIGKILL)
    assert ((await request.end()).status, world.starts("a")) == (200, 2)
    assert world.log_of("a").count(f"request {COMPLETIONS} mine") == 1


@pytest.mark.long
async def test_a_request_with_nothing_delivered_is_computed_by_another(tmp_path: Path, world: RouterWorld) -> None:
    assert (await world.complete("a").end()).status == 200
    (tmp_path / "a.unseen").touch()
    request = world.complete("a", "mine")
    await world.until(lambda: f"request {COMPLETIONS} mine" in world.log_of("a"))
    (tmp_path / "a.unseen").unlink()
    os.kill(world.pid("a"), signal.SIGKILL)
    assert (await request.end()).status == 200
    assert world.log_of("a").count(f"request {COMPLETIONS} mine") == 2


@pytest.mark.long
async def test_a_process_that_lives_and_reads_nothing_of_a_request_gets_it_twice_at_most(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld
) -> None:
    n_sent = 0

    async def unread(*_: Any) -> None:
        nonlocal n_sent
        n_sent += 1
        raise Unread

    assert (await world.complete("a").end()).status == 200
    monkeypatch.setattr("pyllmcancel.front.forwarding.WorkerConnection.head", unread)
    assert (await world.complete("a").end()).failure == (503, "model_ended")
    assert n_sent >= 2  # it is also asked for its health


@pytest.mark.long
async def test_a_process_that_dies_at_its_load_is_tried_three_times(tmp_path: Path, world: RouterWorld) -> None:
    world.let_die("a", -signal.SIGSEGV)
    request = await world.complete("a").end()
    assert request.status == 503
    message = request.json()["error"]["message"]
    assert message == "the model a could not be loaded (signal 11): a does not want to"
    assert world.starts("a") == 3
    status = await world.status("a")
    assert (status["failed"], status["error"], status["lines"]) == (True, message, ["a does not want to"])
    assert (await world.complete("a").end()).status == 503
    assert world.starts("a") == 3
    (tmp_path / "a.dies").unlink()
    await world.load("a")


@pytest.mark.long
async def test_a_process_that_says_why_it_cannot_load_is_not_started_again(world: RouterWorld) -> None:
    world.let_die("a", 2)
    assert (await world.complete("a").end()).status == 503
    assert world.starts("a") == 1


async def test_a_front_whose_models_have_all_failed_is_not_healthy(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a") as world:
        world.let_die("a", 2)
        assert (await world.complete("a").end()).status == 503
        told = await world.get("/health")
        assert (told.status, told.json()["status"]) == (503, "failed")
        (tmp_path / "a.dies").unlink()
        await world.load("a")
        assert (await world.get("/health")).status == 200


@pytest.mark.long
async def test_no_model_makes_room_for_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"no model")
    async with open_router(tmp_path, "good", "broken", most=1, specs={"broken": {"path": path}}) as world:
        assert (await world.complete("good").end()).status == 200
        refused = await world.complete("broken").end()
        message = "the model broken could not be loaded: broken.gguf is no model"
        assert (refused.status, refused.json()["error"]["message"]) == (503, message)
        assert (refused.headers["x-should-retry"], refused.headers.get("retry-after")) == ("false", None)
        await world.post("/models/load", {"model": "broken"})
        await world.until_state("broken", State.FAILED)
        status = await world.status("broken")
        assert (status["failed"], status["error"], status["lines"]) == (True, message, ["broken.gguf is no model"])
        assert world.keeper.replica("good").state is State.LOADED
        assert (world.starts("good"), world.starts("broken")) == (1, 0)
        path.write_bytes(MODEL)
        await world.load("broken")


@pytest.mark.long
async def test_a_model_that_is_unloaded_under_its_requests_ends_each(world: RouterWorld) -> None:
    running = await world.streaming("a")
    assert (await world.post("/models/unload", {"model": "a"})).status == 200
    assert '"error"' in (await running.end()).events[-1]
    await world.until_state("a", State.UNLOADED)
    assert await world.status("a") == {"value": "unloaded"}
    assert (await world.post("/models/unload", {"model": "a"})).status == 400
    world.hold_loads("a")
    waiting = await world.waiting("a", "mine")
    await world.post("/models/unload", {"model": "a"})
    assert (await waiting.end()).json()["error"]["message"] == "the model a was unloaded"


async def test_a_model_that_computes_is_not_unloaded_for_another(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", most=1) as world:
        running = await world.streaming("a", until="end")
        other = await world.waiting("b", "other")
        told = {"value": "loading", "stage": "waiting", "progress": None, "reason": "a has requests"}
        assert await world.status("b") == told
        n_events = len(running.events)
        await running.until(lambda: len(running.events) > n_events)
        assert world.starts("b") == 0
        (tmp_path / "end").touch()
        assert (await running.end()).events[-1] == "[DONE]"
        assert (await other.end()).status == 200
        assert world.keeper.replica("a").state is State.UNLOADED


@pytest.mark.long
async def test_an_idle_model_sleeps_and_wakes(world: RouterWorld) -> None:
    assert (await world.complete("a", keep_alive=0).end()).status == 200
    await world.until_state("a", State.UNLOADED)
    assert await world.status("a") == {"value": "sleeping"}
    assert "x-model-load-ms" in (await world.complete("a", keep_alive="5m").end()).headers
    assert world.keeper.replica("a").idle_after == 300.0
    assert (await world.complete("a", keep_alive="soon").end()).refusal == (400, "keep_alive")


@pytest.mark.long
async def test_without_autoload_a_request_loads_nothing(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", autoload=False) as world:
        assert (await world.complete("a").end()).failure == (400, "model_not_loaded")
        assert (await world.post(f"{COMPLETIONS}?autoload=true", {"model": "a"})).status == 200
        assert (await world.complete("a").end()).status == 200


@pytest.mark.long
async def test_models_that_start_with_the_server(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", specs={"b": {"starts": True}}) as world:
        await world.until_state("b", State.LOADED)
        assert world.starts("a") == 0
        listed = (await world.get("/v1/models")).json()["data"]
        assert [(one["id"], one["default"], one["status"]["value"]) for one in listed] == [
            ("a", True, "unloaded"),
            ("b", False, "loaded"),
        ]


@pytest.mark.long
async def test_the_list_is_read_again(world: RouterWorld) -> None:
    (removed,) = [one for one in world.specs if one.name == "b"]
    running = await world.streaming("b")
    world.specs = [one for one in world.specs if one.name != "b"]
    world.specs.append(type(removed)(name="c", path=None, options=()))
    assert (await world.complete("c").end()).status == 200  # found without being asked
    assert (await world.complete("b").end()).status == 200  # what is loaded stays
    assert {one["id"] for one in (await world.get("/models?reload=1")).json()["data"]} == {"a", "c"}
    assert '"error"' in (await running.end()).events[-1]
    assert (await world.complete("b").end()).status == 404


@pytest.mark.long
async def test_a_shutdown_ends_every_request(world: RouterWorld) -> None:
    running = await world.streaming("a")
    world.hold_loads("b")
    waiting = await world.waiting("b", "mine")
    async with asyncio.timeout(20.0):
        await world.keeper.close()
    assert (await waiting.end()).failure == (503, "shutdown")
    assert '"error"' in (await running.end()).events[-1]
    assert (await world.complete("a").end()).failure == (503, "shutdown")


async def test_before_any_model_is_loaded_the_lists_are_empty(world: RouterWorld) -> None:
    for path in ("/v1/requests", "/v1/sessions"):
        assert (await world.get(path)).json() == {"object": "list", "data": []}
    for path in ("/v1/requests/no/cancel", "/v1/sessions/no/cancel"):
        assert (await world.post(path)).status == 404
    assert (await world.get("/health")).json() == {"status": "ok", "waiting": 0, "running": 0}
    assert (await world.get("/props")).json()["role"] == "router"
    assert (await world.get("/props?model=a")).status == 400
    assert b"model=" not in (await world.get("/metrics")).body


@pytest.mark.long
async def test_the_only_model_is_described_while_it_is_loaded_and_asleep(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a") as world:
        assert (await world.complete("a", keep_alive=0).end()).status == 200
        await world.until_state("a", State.UNLOADED)
        assert (await world.get("/props")).json()["is_sleeping"] is True
        assert (await world.complete("a").end()).status == 200
        assert (await world.get("/props")).json()["model"] == "a"  # its own
        assert (await world.get("/props?model=nope")).status == 404
        assert (await world.post("/props")).status == 405


@pytest.mark.long
async def test_a_response_is_looked_for_in_every_process(tmp_path: Path, world: RouterWorld) -> None:
    assert (await world.get("/v1/responses/resp_trip")).status == 503
    for model in ("a", "b"):
        assert (await world.complete(model).end()).status == 200
    (tmp_path / "a.lacks").write_text("404 not_found")
    assert (await world.get("/v1/responses/resp_trip")).json()["model"] == "b"
    (tmp_path / "b.lacks").write_text("404 not_found")
    assert (await world.get("/v1/responses/resp_trip")).status == 404


async def test_idle_requests_of_all_processes_wait_while_others_are_there(world: RouterWorld) -> None:
    await world.complete("a").end()
    idle = await world.streaming("a", "idle", priority="idle")
    other = await world.streaming("b", "other")  # loads its model first
    await world.until(lambda: world.log_of("a").count("command wait") == 1)
    assert world.log_of("a").count("command go") == 0
    other.leave()
    await world.until(lambda: world.log_of("a").count("command go") == 1)
    assert world.log_of("b").count("command wait") == 0
    idle.leave()


async def test_an_idle_request_waits_until_others_have_its_model_loaded(world: RouterWorld) -> None:
    idle = await world.waiting("a", "idle", priority="idle")
    (listed,) = (await world.get("/v1/requests")).json()["data"]
    assert (listed["priority"], world.starts("a")) == ("idle", 0)
    assert (await world.complete("a").end()).status == 200
    assert (await idle.end()).status == 200
