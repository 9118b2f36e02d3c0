"""Hostile and clumsy clients of the router, and a machine without reserves."""

import asyncio
import errno
import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.front import upstream
from pyllmcancel.front.replica import State
from pyllmcancel.server.from_front import body_of
from pyllmcancel.server.limits import SMALL_BODY
from pyllmcancel.shares import Owners, Shares
from tests.front.world import ADMIN, ANN, BOB, COMPLETIONS, KEYS, RouterWorld, open_router
from tests.support.http_asgi import Exchange

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "", "x" * 2_000])
async def test_a_session_that_no_process_would_accept_does_not_break_the_list(world: RouterWorld, name: str) -> None:
    world.hold_loads("a")
    await world.waiting("a", "mine", session_id=name)
    listed = await world.get("/v1/requests")
    assert listed.status == 200
    assert [(one["id"], one["session"]) for one in listed.json()["data"]] == [("mine", None)]


async def test_a_newer_request_for_a_loaded_model_supersedes_one_that_waits_for_another(world: RouterWorld) -> None:
    assert (await world.complete("a").end()).status == 200
    world.hold_loads("b")
    older = await world.waiting("b", "older", supersede="editor")
    assert (await world.complete("a", "newer", supersede="editor").end()).status == 200
    assert (await older.end()).failure == (499, "superseded")


def refuse_connections(monkeypatch: pytest.MonkeyPatch, number: int) -> asyncio.Event:
    """Let no request reach a process; the event tells of the first that tried."""
    tried = asyncio.Event()

    async def begin(*_: Any) -> upstream.WorkerConnection:
        tried.set()
        raise OSError(number, "no")

    monkeypatch.setattr("pyllmcancel.front.forwarding.WorkerConnection.begin", begin)
    return tried


async def test_without_descriptors_requests_are_refused(monkeypatch: pytest.MonkeyPatch, world: RouterWorld) -> None:
    assert (await world.complete("a").end()).status == 200
    with monkeypatch.context() as patched:
        refuse_connections(patched, errno.EMFILE)
        request = await world.complete("a").end()
        assert request.status == 503
        assert request.headers["retry-after"]
    assert (await world.complete("a").end()).status == 200


@pytest.mark.parametrize("way", ["leave", "cancel"])
async def test_a_request_that_waits_for_the_end_of_its_process_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld, way: str
) -> None:
    running = await world.streaming("a")
    # As while it drains after a SIGTERM from outside: it lives, and does not listen.
    tried = refuse_connections(monkeypatch, errno.ECONNREFUSED)
    request = world.complete("a", "mine")
    await tried.wait()
    if way == "leave":
        request.leave()
    else:
        await world.waits("mine")
        assert (await world.begin("DELETE", "/v1/requests/mine").end()).json()["outcome"] == "cancelled"
    await request.end()
    assert world.keeper.replica("a").state is State.LOADED
    assert not running.complete


@pytest.mark.parametrize("length", [10, SMALL_BODY, SMALL_BODY + 1])
async def test_a_long_body_is_kept_while_it_is_answered_only_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch, world: RouterWorld, length: int
) -> None:
    n_kept = 0

    class Body(bytes):
        def __init__(self, _: bytes) -> None:
            nonlocal n_kept
            n_kept += 1

        def __del__(self) -> None:
            nonlocal n_kept
            n_kept -= 1

    async def read(receive: Any) -> bytes:
        return Body(await body_of(receive))

    monkeypatch.setattr("pyllmcancel.front.router.body_of", read)
    monkeypatch.setattr(world.app.state.router, "_bodies", Shares(0, Owners(several=False)))
    await world.streaming("a", until="end", more="x" * length)
    gc.collect()
    assert n_kept == (length < SMALL_BODY)


@pytest.mark.parametrize("by", ["path", "query", "id"])
@pytest.mark.parametrize("others", [False, True], ids=["alone", "beside a loaded model"])
async def test_a_stream_is_deleted_while_its_model_is_awaited(world: RouterWorld, by: str, *, others: bool) -> None:
    path = {"path": "/v1/stream/my/trip", "query": "/v1/stream?conv_id=my%2Ftrip", "id": "/v1/stream/mine"}[by]
    if others:
        assert (await world.complete("b").end()).status == 200
    world.hold_loads("a")
    headers = {"x-request-id": "mine"} if by == "id" else {"x-request-id": "mine", "x-conversation-id": "my/trip"}
    body = {"model": "a", "stream": True, "keep_going": by == "id", "until": "never"}
    request = world.begin("POST", COMPLETIONS, body, headers=headers)
    await world.waits("mine")
    assert (await world.get(path)).failure == (503, "preparing")
    assert (await world.begin("DELETE", path).end()).status == 204
    assert (await request.end()).failure == (499, "explicit")


async def test_a_newer_stream_of_a_conversation_supersedes_one_that_waits(tmp_path: Path, world: RouterWorld) -> None:
    world.hold_loads("a")

    def begin(request_id: str, *, stream: bool) -> Exchange:
        headers = {"x-request-id": request_id, "x-conversation-id": "trip"}
        return world.begin("POST", COMPLETIONS, {"model": "a", "stream": stream, "until": "end"}, headers=headers)

    older = begin("older", stream=True)
    await world.waits("older")
    whole = begin("whole", stream=False)  # has no stream, and supersedes nothing
    await world.waits("whole")
    newer = begin("newer", stream=True)
    assert (await older.end()).failure == (499, "superseded")
    (tmp_path / "end").touch()
    world.let_load("a")
    assert (await newer.end()).status == (await whole.end()).status == 200


async def test_an_owner_does_not_learn_from_the_list_of_models_what_others_do(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", **KEYS) as world:
        for _ in range(3):  # a fourth start is not tried
            stream = world.begin("POST", COMPLETIONS, {"model": "a", "stream": True, "until": "never"}, headers=ANN)
            await stream.next_event()
            world.keeper.processes["a"].lines.append("ann's request")  # as its log has it
            os.kill(world.pid("a"), signal.SIGKILL)
            await stream.end()
            await world.until(lambda: world.keeper.replica("a").state is not State.LOADED)
        assert world.keeper.replica("a").state is State.FAILED
        for path in ("/v1/models", "/v1/models/a"):
            assert b"ann's request" not in (told := await world.get(path, headers=BOB)).body
            assert not any(word in told.body for word in (b'"running"', b'"waiting"', b'"used_seconds_ago"'))
            assert b"ann's request" in (told := await world.get(path, headers=ADMIN)).body
            assert all(word in told.body for word in (b'"running"', b'"waiting"', b'"used_seconds_ago"'))
        refused = await world.begin("POST", COMPLETIONS, {"model": "a"}, headers=BOB).end()
        assert refused.json()["error"]["message"] == "the model a ended (signal 9)"


async def test_an_id_belongs_to_one_waiting_request_of_an_owner(tmp_path: Path) -> None:
    ann, bob = (owner | {"x-request-id": "mine"} for owner in (ANN, BOB))
    async with open_router(tmp_path, "a", **KEYS) as world:
        world.hold_loads("a")
        first = world.begin("POST", COMPLETIONS, {"model": "a"}, headers=ann)
        await world.waits("mine")
        assert (await world.begin("POST", COMPLETIONS, {"model": "a"}, headers=ann).end()).refusal == (400, "id")
        other = world.begin("POST", COMPLETIONS, {"model": "a"}, headers=bob)
        await world.until(lambda: len(world.requests.coming("bob")) == 1)
        assert (await world.begin("DELETE", "/v1/requests/mine", headers=ann).end()).status == 200
        assert (await first.end()).status == 499
        world.let_load("a")
        assert (await other.end()).status == 200
