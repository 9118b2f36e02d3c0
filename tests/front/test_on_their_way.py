"""Requests that were sent to a process which has not seen them yet: they are listed and cancelled all the same."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.http.request_context import RequestContext
from tests.front.world import COMPLETIONS, RouterWorld, open_router
from tests.support.http_asgi import Exchange

pytestmark = pytest.mark.anyio


async def sent_unseen(world: RouterWorld) -> Exchange:
    """Send a request to a process that does not see it yet."""
    assert (await world.complete("a").end()).status == 200
    (world.folder / "a.unseen").touch()
    request = world.complete("a", "mine", session_id="turn", parent_session_id="chat")
    await world.until(lambda: f"request {COMPLETIONS} mine" in world.log_of("a"))
    return request


async def test_a_request_that_its_process_has_not_seen_is_cancelled(tmp_path: Path, world: RouterWorld) -> None:
    request = await sent_unseen(world)
    cancel = world.begin("POST", "/v1/requests/mine/cancel")
    await world.until(lambda: "command explicit" in world.log_of("a"))
    assert not cancel.complete  # it is not known yet how the request ends
    (tmp_path / "a.unseen").unlink()
    assert (await request.end()).status == 499
    told = (await cancel.end()).json()
    assert cancel.status == 200
    assert (told["id"], told["outcome"], told["reason"]) == ("mine", "cancelled", "explicit")


async def test_a_request_that_its_process_has_not_seen_is_listed(tmp_path: Path, world: RouterWorld) -> None:
    request = await sent_unseen(world)
    for query in ("", "?status=waiting", "?session=turn"):
        entry = (await world.get(f"/v1/requests{query}")).json()["data"][0]
        assert (entry["id"], entry["phase"], entry["session"]) == ("mine", "preparing", "turn")
    assert (await world.get("/v1/requests?status=running")).json()["data"] == []
    assert (await world.get("/v1/requests/mine")).json()["phase"] == "preparing"
    (tmp_path / "a.unseen").unlink()
    assert (await request.end()).status == 200
    assert (await world.get("/v1/requests?status=waiting")).json()["data"] == []
    assert (await world.get("/v1/requests/mine")).json()["status"] == "finished"


@pytest.mark.long
async def test_a_cancel_between_the_load_and_the_sending_counts(world: RouterWorld) -> None:
    world.hold_loads("a")
    request = await world.waiting("a", "mine")
    (waiting,) = world.requests.registry.requests()
    keeper = world.keeper
    loaded, has_answered = asyncio.Event(), keeper.has_answered

    def answered(process: Any, slots: int) -> None:
        has_answered(process, slots)  # the request has its process, and its task has not run yet
        if not loaded.is_set():
            assert world.requests.cancel(waiting)
            loaded.set()

    keeper.has_answered = answered  # type: ignore[method-assign]
    world.let_load("a")
    await loaded.wait()
    assert (await request.end()).failure == (499, "explicit")
    assert not any(line.startswith("request") for line in world.log_of("a"))


@pytest.mark.long
async def test_a_cancel_does_not_wait_for_a_process_that_has_no_part_in_it(tmp_path: Path, world: RouterWorld) -> None:
    assert (await world.complete("b").end()).status == 200
    stream = await world.streaming("a", "mine")
    (tmp_path / "b.stuck").touch()
    told = (await world.post("/v1/requests/mine/cancel")).json()
    assert (told["outcome"], told["phase"]) == ("cancelled", "decode")
    await stream.end()
    assert not any("command" in line for line in world.log_of("b"))
    (tmp_path / "b.stuck").unlink()


# -- one clock --------------------------------------------------------------------------------------------------------


async def test_an_older_request_whose_body_came_late_supersedes_no_newer_one(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", loads=("b",)) as world:
        older = world.begin("POST", COMPLETIONS, content=None, headers={"x-request-id": "older"})
        newer = await world.waiting("b", "newer", supersede="editor")
        older.body_arrives(json.dumps({"model": "a", "supersede": "editor"}).encode())
        assert (await older.end()).failure == (499, "superseded")
        world.let_load("b")
        assert (await newer.end()).status == 200
        assert not any(line.startswith("request /v1/completions") for line in world.log_of("a"))


@pytest.mark.long
async def test_a_process_learns_when_a_request_arrived_in_front(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", loads=("a",)) as world:
        before = time.monotonic()
        own = {"x-arrived": "1.0", "x-request-id": "mine"}
        request = world.begin("POST", COMPLETIONS, {"model": "a"}, headers=own)
        await world.waits("mine")
        after = time.monotonic()
        world.let_load("a")
        told = (await request.end()).json()["headers"]["x-arrived"]
        assert before <= float(told) <= after  # the load is part of the request's time


@pytest.mark.parametrize("told", ["1.5", "soon", "1.5 soon", "1e300", ""])
@pytest.mark.parametrize("is_behind", [True, False])
async def test_only_a_process_behind_another_believes_it(told: str, *, is_behind: bool) -> None:
    state: dict[str, Any] = {}

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        state.update(scope["state"])

    began = time.monotonic()
    context = RequestContext(app, is_behind=is_behind)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-arrived", told.encode())]}
    await context(scope, None, None)  # type: ignore[arg-type]
    if is_behind and told == "1.5":
        assert state["exchange"].arrived_at == 1.5
    else:
        assert began <= state["exchange"].arrived_at <= time.monotonic()  # no later one is believed, either
