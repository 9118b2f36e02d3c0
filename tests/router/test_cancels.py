"""Cancels that meet the end of a process, a request that comes meanwhile, or a family of which only the front knows."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyllmcancel.router import cancels, front, roster, routes_requests
from pyllmcancel.router.cancels import Cancels
from pyllmcancel.router.spec import Catalog, Spec
from pyllmcancel.server.origin import CONVERSATION_HEADERS
from tests.router.world import COMPLETIONS, RouterWorld, open_router

if TYPE_CHECKING:
    from tests.support.http_asgi import Exchange

pytestmark = pytest.mark.anyio


def same_names(world: RouterWorld) -> Exchange:
    """Begin a stream whose conversation is called like its request."""
    headers = {"x-request-id": "same", CONVERSATION_HEADERS[0]: "same"}
    body = {"model": "a", "prompt": "x", "stream": True, "until": "done"}
    return world.begin("POST", COMPLETIONS, body, headers=headers)


async def test_a_conversation_may_be_called_like_its_request(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", stream_keep=60.0, loads=("a",)) as world:
        waiting = same_names(world)
        await world.waits("same")
        assert (await world.post("/v1/requests/same/cancel")).json()["outcome"] == "cancelled"
        assert (await waiting.end()).status == 499
        world.let_load("a")
        (tmp_path / "done").touch()
        assert (await same_names(world).end()).status == 200
        assert not world.app.state.router.requests.of(None)


async def test_a_family_reaches_over_sessions_that_only_the_front_knows(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", loads=("b",)) as world:
        below = world.complete(
            "a", "below", session_id="below", parent_session_id="between", stream=True, until="never"
        )
        await below.next_event()
        between = world.complete("b", "between", session_id="between", parent_session_id="top")
        await world.waits("between")
        told = await world.post("/v1/sessions/top/cancel")
        assert {one["id"] for one in told.json()["requests"]} == {"between", "below"}
        assert (await between.end()).status == 499
        await below.end()


async def held_by_a_stopped_process(world: RouterWorld, **fields: Any) -> Exchange:
    """Send a request to a process that has read nothing of it, and reads no more."""
    assert (await world.complete("a").end()).status == 200
    os.kill(world.pid("a"), signal.SIGSTOP)
    request = world.complete("a", "mine", **fields)
    await world.until(lambda: any(one.is_between for one in world.app.state.router.requests.of(None)))
    return request


@pytest.mark.parametrize("wait", ["true", "false"])
async def test_a_cancel_right_after_a_kill_is_not_lost(tmp_path: Path, wait: str) -> None:
    async with open_router(tmp_path, "a") as world:
        request = await held_by_a_stopped_process(world)
        os.kill(world.pid("a"), signal.SIGKILL)
        time.sleep(0.05)  # noqa: ASYNC251 - the event loop is not to see the end of the process before the cancel
        told = await world.post(f"/v1/requests/mine/cancel?wait={wait}")
        assert (told.status, told.json()["outcome"]) == (200, "cancelled")
        assert (await request.end()).status == 499


async def test_a_request_that_outlives_its_client_is_sent_again(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", stream_keep=60.0) as world:
        request = await held_by_a_stopped_process(world, stream=True, until="never", keep_going=True)
        first = world.pid("a")
        request.leave()
        os.kill(first, signal.SIGKILL)
        await world.until(lambda: any(f"request {COMPLETIONS} mine" in line for line in world.log_of("a")))
        assert world.pid("a") != first


async def test_what_comes_after_the_last_look_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()
    came: list[Exchange] = []
    everywhere, find = Cancels._everywhere, Cancels.find

    async def note(*given: Any, **options: Any) -> Any:
        found = await everywhere(*given, **options)
        asked.set()
        return found

    def look(self: Cancels, owner: str | None, request_id: str) -> Any:
        seen = find(self, owner, request_id)
        if asked.is_set() and not came:
            came.append(world.complete("a", "late", stream=True, until="never"))
        return seen

    monkeypatch.setattr(Cancels, "_everywhere", note)
    monkeypatch.setattr(Cancels, "find", look)
    async with open_router(tmp_path, "a") as world:
        assert (await world.complete("a").end()).status == 200
        told = await world.post("/v1/requests/late/cancel?hold=60")
        assert told.json()["outcome"] == "held"
        assert (await came[0].end()).status == 499


def test_a_model_that_is_kept_keeps_its_names() -> None:
    kept = Spec(name="a", path=None, options=(), aliases=("old", "taken"))
    empty, other = Catalog([]), Catalog([Spec(name="b", path=None, options=(), aliases=("taken",))])
    for catalog in (empty, other):
        catalog.keep(kept)
        assert catalog.find("a") is catalog.find("old") is kept
    assert empty.default is kept
    assert other.default is other.find("taken") is other.find("b") is not kept


async def test_many_looks_end(tmp_path: Path) -> None:
    """Requests that come while others are cancelled are cancelled with them, and the cancel comes to its end."""
    async with open_router(tmp_path, "a", loads=("a",)) as world:
        requests = [world.complete("a", f"r{n}") for n in range(5)]
        for n in range(5):
            await world.waits(f"r{n}")
        told = await world.post("/v1/requests/cancel", {"request_ids": [f"r{n}" for n in range(6)]})
        assert [one["outcome"] for one in told.json()["data"]] == ["cancelled"] * 5 + ["unknown"]
        assert [one.status for one in await asyncio.gather(*(one.end() for one in requests))] == [499] * 5


REPLIES = {
    ("POST", "/v1/requests/nobody/cancel"): 404,
    ("DELETE", "/v1/requests/nobody"): 404,
    ("POST", "/v1/sessions/nobody/cancel"): 404,
    ("GET", "/v1/stream/some"): 200,
    ("DELETE", "/v1/stream/some"): 204,
    ("GET", "/metrics"): 200,
    ("GET", "/v1/requests"): 200,
    ("POST", "/v1/streams/lookup"): 200,
    ("GET", "/v1/responses/resp_some"): 200,
}
# Any process answers these, so that nobody needs to know of the stuck one.
OF_ANY = ("/v1/streams/lookup", "/v1/responses/resp_some")


@pytest.mark.parametrize(("method", "path"), REPLIES)
async def test_a_stuck_process_is_waited_for_a_moment_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    for module in (cancels, front, routes_requests):
        monkeypatch.setattr(module, "DEADLINE_SECONDS", 3.0)
    async with open_router(tmp_path, "a", "b") as world:
        for model in ("a", "b"):
            assert (await world.complete(model).end()).status == 200
        os.kill(world.pid("a"), signal.SIGSTOP)
        told = await world.begin(method, path).end()
        assert told.status == REPLIES[method, path]
        assert told.headers.get("x-unreached") == (None if path in OF_ANY else "a")
        os.kill(world.pid("b"), signal.SIGSTOP)
        told = await world.begin(method, path).end()
        if path in OF_ANY or "stream" in path:
            assert (told.status, told.json()["error"]["code"]) == (503, "replica_unreached")


async def test_a_stuck_process_makes_room_for_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "ANSWERS_WITHIN", math.inf)
    async with open_router(tmp_path, "a", "b", most=1) as world:
        assert (await world.complete("a").end()).status == 200
        os.kill(world.pid("a"), signal.SIGSTOP)
        assert (await world.complete("b").end()).status == 200
