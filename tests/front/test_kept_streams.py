"""Streams that the front keeps: they need neither their client nor, after their end, their process."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.events import RequestStatus
from pyllmcancel.front.replica import State
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.shares import Owners, Shares
from tests.front.world import COMPLETIONS, RouterWorld, open_router
from tests.support.http_asgi import LIMIT, Exchange

pytestmark = pytest.mark.anyio


def ask(world: RouterWorld, *, conversation: str | None = None, request_id: str = "mine", **fields: Any) -> Exchange:
    headers = {"x-request-id": request_id} | ({} if conversation is None else {"x-conversation-id": conversation})
    body = {"model": "a", "stream": True, "until": "done", "keep_going": conversation is None} | fields
    return world.begin("POST", COMPLETIONS, body, headers=headers)


def read(world: RouterWorld, name: str = "mine", start: int = 0) -> Exchange:
    return world.begin("GET", f"/v1/stream/{name}?from={start}")


async def left(world: RouterWorld, **fields: Any) -> Exchange:
    """A stream whose client has left after its first event."""
    first = ask(world, **fields)
    await first.next_event()
    await first.left()
    return first


@pytest.mark.parametrize("conversation", ["trip", None])
async def test_a_stream_that_is_kept_waits_for_its_model_without_its_client(
    world: RouterWorld, conversation: str | None
) -> None:
    world.hold_loads("a")
    request = ask(world, conversation=conversation)
    await world.waits("mine")
    request.leave()
    neighbour = world.complete("a", "neighbour")
    await world.waits("neighbour")
    await neighbour.left()
    assert world.keeper.replica("a").state is State.LOADING
    await request.end()
    [mine] = world.requests.registry.requests()
    world.let_load("a")
    await world.until(lambda: mine.status is not RequestStatus.LOADING)
    assert mine.status is RequestStatus.WAITING, (mine.summary(), world.log)
    assert f"request {COMPLETIONS} neighbour" not in world.log_of("a")
    reader = read(world, conversation or "mine")
    await reader.next_event()
    assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
    assert '"code": "explicit"' in (await reader.end()).events[-1]


@pytest.mark.parametrize("process", ["loads", "unseen"])
async def test_a_stream_that_does_not_begin_in_time_is_ended_without_its_client(
    tmp_path: Path, world: RouterWorld, process: str
) -> None:
    (tmp_path / f"a.{process}").touch()
    request = ask(world, keep_going=0.01)
    await world.until(lambda: world.requests.coming(None) and world.requests.coming(None)[0].model)
    if process == "unseen":
        await world.until(lambda: f"request {COMPLETIONS} mine" in world.log_of("a"))
    await request.left()
    await world.until(lambda: not world.requests.registry.requests())
    told = (await world.get("/v1/requests/mine")).json()
    assert (told["status"], told["cancel_reason"]) == ("cancelled", "disconnect")
    (tmp_path / f"a.{process}").unlink()
    assert (await read(world).end()).status == 404


async def test_a_stream_is_read_from_any_place_after_its_process_has_ended(tmp_path: Path, world: RouterWorld) -> None:
    first = await left(world)
    reader = read(world)
    await reader.next_event()
    assert (await world.get("/v1/requests/mine")).json()["readers"] == 1
    (tmp_path / "done").touch()
    whole = (await reader.end()).body
    assert whole.startswith(first.body)
    assert whole.endswith(b"data: [DONE]\n\n")
    os.kill(world.pid("a"), signal.SIGKILL)
    await world.until_state("a", State.LOADED)
    assert (await read(world, start=5).end()).body == whole[5:]
    listed = await world.post("/v1/streams/lookup", {"conversation_ids": ["mine", "other"]})
    assert [(one["request_id"], one["total_bytes"]) for one in listed.json()] == [("mine", len(whole))]
    assert b"pyllmcancel_streams_kept{} 1.0" in (await world.get("/metrics")).body
    assert (await world.begin("DELETE", "/v1/stream/mine").end()).status == 204
    assert (await read(world).end()).status == 404


async def test_a_stream_that_nobody_reads_is_cancelled_and_does_not_look_whole(world: RouterWorld) -> None:
    await left(world)
    kept = world.app.state.server.streams.find(NO_OWNER, "mine")
    kept._seconds = 0.0  # only now: it must have begun before
    with kept.reading():
        pass
    kept._seconds = LIMIT
    await asyncio.wait_for(kept.written(), LIMIT)
    told = (await world.get("/v1/requests/mine")).json()
    assert (told["status"], told["cancel_reason"]) == ("cancelled", "disconnect")
    assert '"code": "disconnect"' in (await read(world).end()).events[-1]
    await world.until(lambda: "left" in world.log_of("a"))


async def test_a_stream_whose_process_dies_ends_with_an_error_for_every_reader(world: RouterWorld) -> None:
    first = ask(world)
    await first.next_event()
    reader = read(world)
    await reader.next_event()
    os.kill(world.pid("a"), signal.SIGKILL)
    for one in (first, reader, read(world)):
        assert '"code": "model_ended"' in (await one.end()).events[-1]


async def test_a_newer_stream_of_a_conversation_takes_its_name(tmp_path: Path, world: RouterWorld) -> None:
    older = ask(world, conversation="trip")
    await older.next_event()
    newer = ask(world, conversation="trip", request_id="newer")
    assert '"code": "explicit"' in (await older.end()).events[-1]  # the worker's word for each command
    assert (await world.get("/v1/requests/mine")).json()["cancel_reason"] == "superseded"
    (tmp_path / "done").touch()
    assert (await read(world, "trip").end()).body == (await newer.end()).body


async def test_there_are_only_so_many_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b") as world:
        monkeypatch.setattr(world.app.state.server.streams, "_shares", Shares(1, Owners(several=False)))
        await left(world)
        assert (await ask(world, request_id="other").end()).failure == (429, "too_many_streams")
        (tmp_path / "done").touch()
        await read(world).end()
        assert (await ask(world, request_id="other").end()).status == 200
        (tmp_path / "done").unlink()
        world.hold_loads("b")
        waiting = [ask(world, request_id=one, model="b") for one in ("first", "second")]
        for one in ("first", "second"):
            await world.waits(one)  # there is room for each of them, but not for both
        world.let_load("b")
        assert sorted([(await one.until_headers()).status for one in waiting]) == [200, 429]
