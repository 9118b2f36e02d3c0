"""The feeds of several models: one stream, whichever models come and go; and llama-server's events of loads."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.front import feed as feed_module
from pyllmcancel.front.feed import whole_events
from pyllmcancel.front.replica import State
from pyllmcancel.front.upstream import Broken
from pyllmcancel.server.config import ApiKey
from tests.front.world import RouterWorld, open_router
from tests.support.http_asgi import Exchange

pytestmark = pytest.mark.anyio

EVENTS = "/v1/events"


def told(feed: Exchange, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(data) for data in feed.events]
    return [event for event in found if event["type"] == kind]


def states(feed: Exchange) -> dict[str, str]:
    events = told(feed, "models")
    return {one["id"]: one["status"]["value"] for one in events[-1]["models"]} if events else {}


def has_failed(feed: Exchange) -> bool:
    events = told(feed, "models")
    return bool(events) and "error" in events[-1]["models"][0]["status"]


async def until_states(world: RouterWorld, feed: Exchange, **expected: str) -> None:
    await world.until(lambda: states(feed) == expected)


async def test_the_feed_outlives_the_models_and_tells_their_states(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", loads=("a",)) as world:
        feed = world.begin("GET", EVENTS)
        await until_states(world, feed, a="unloaded", b="unloaded")
        assert not told(feed, "told")
        waiting = world.complete("a", "mine")
        await until_states(world, feed, a="loading", b="unloaded")
        await world.until(lambda: told(feed, "models")[-1]["models"][0]["status"].get("progress") == 0.5)
        await world.until(lambda: [one["id"] for one in told(feed, "models")[-1]["requests"]] == ["mine"])
        world.let_load("a")
        assert (await waiting.end()).status == 200
        await until_states(world, feed, a="loaded", b="unloaded")
        await world.until(lambda: told(feed, "models")[-1]["requests"] == [])
        await world.until(lambda: {one["replica"] for one in told(feed, "told")} == {"a"})
        assert (await world.complete("b").end()).status == 200
        await world.until(lambda: {one["replica"] for one in told(feed, "told")} == {"a", "b"})
        assert b"\nid: " not in feed.body
        await world.post("/models/unload", {"model": "a"})
        await world.post("/models/unload", {"model": "b"})
        await until_states(world, feed, a="unloaded", b="unloaded")
        assert feed.status == 200


@pytest.mark.long
async def test_a_failure_is_told_with_its_lines_to_those_who_see_all(tmp_path: Path) -> None:
    keys = (ApiKey("one", "key-of-one-0123456789"), ApiKey("two", "key-of-two-0123456789"))
    admin = "key-of-root-0123456789"
    async with open_router(tmp_path, "a", api_keys=keys, admin_api_keys=(admin,)) as world:
        world.let_die("a", 1)
        mine, all_seen = (
            world.begin("GET", EVENTS, headers={"authorization": f"Bearer {key}"}) for key in (keys[0].key, admin)
        )
        world.begin("POST", "/models/load", {"model": "a"}, headers={"authorization": f"Bearer {admin}"})
        for feed in (mine, all_seen):
            await world.until(partial(has_failed, feed))
        shown = told(all_seen, "models")[-1]
        assert shown["manages"]
        assert shown["models"][0]["status"]["lines"] == ["a does not want to"]
        hidden = told(mine, "models")[-1]
        assert not hidden["manages"]
        assert "lines" not in hidden["models"][0]["status"]
        assert "waiting" not in hidden["models"][0]


@pytest.mark.long
async def test_types_choose_whose_events_come(world: RouterWorld) -> None:
    assert (await world.complete("a").end()).status == 200
    only_models, no_models = (world.begin("GET", f"{EVENTS}?types={types}") for types in ("models", "added"))
    await until_states(world, only_models, a="loaded", b="unloaded")
    await world.until(lambda: told(no_models, "told"))
    assert not told(no_models, "models")
    assert not told(only_models, "told")
    # The process does not learn of a type that it does not know.
    assert [line.split()[1] for line in world.log_of("a") if "events" in line] == [f"{EVENTS}?replica=a&types=added"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "status", "code"),
    [("replica=no", 404, "unknown_replica"), ("types=no", 400, "unknown_type"), ("owner=bob", 403, "admin_only")],
)
async def test_a_reader_of_what_is_not_there_is_refused(world: RouterWorld, query: str, status: int, code: str) -> None:
    assert (await world.get(f"{EVENTS}?{query}")).failure == (status, code)


@pytest.mark.long
async def test_a_reader_that_leaves_gives_its_place_back(world: RouterWorld) -> None:
    assert (await world.complete("a").end()).status == 200
    feed = world.begin("GET", EVENTS)
    await world.until(lambda: told(feed, "told"))
    feed.leave()
    await world.until(lambda: "left" in world.log_of("a"))
    seats = world.app.state.seats
    await world.until(lambda: seats.has("", 64))


@pytest.mark.long
async def test_the_feed_ends_with_the_server(world: RouterWorld) -> None:
    idle = world.begin("GET", EVENTS)
    await until_states(world, idle, a="unloaded", b="unloaded")
    assert (await world.complete("a").end()).status == 200
    busy = world.begin("GET", EVENTS)
    await world.until(lambda: told(busy, "told"))
    await world.keeper.close()
    for feed in (idle, busy):
        assert (await feed.end()).status == 200
    assert world.keeper.replica("a").state is not State.LOADING


@pytest.mark.long
async def test_llama_servers_events_tell_each_change_of_a_state(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", loads=("a",)) as world:
        feed = world.begin("GET", "/models/sse")
        await feed.until(lambda: feed.body)
        assert feed.headers["content-type"].startswith("text/event-stream")
        await world.post("/models/load", {"model": "a"})
        events: list[Any] = []

        async def until(event: dict[str, Any]) -> None:
            while not events or events[-1] != event:
                events.append(await feed.next_json())

        assert (await feed.next_json()) == {"model": "a", "event": "model_status", "data": {"status": "loading"}}
        progress = {"stages": ["text_model"], "current": "text_model", "value": 0.5}
        loading = {"status": "loading", "progress": progress}
        await until({"model": "a", "event": "status_change", "data": loading})
        world.let_load("a")
        await until({"model": "a", "event": "status_change", "data": {"status": "loaded"}})
        await world.post("/models/unload", {"model": "a"})
        await until({"model": "a", "event": "status_change", "data": {"status": "unloaded", "exit_code": 0}})
        world.let_die("a", 2)
        await world.post("/models/load", {"model": "a"})
        await until({"model": "a", "event": "status_change", "data": {"status": "unloaded", "exit_code": 1}})
        (removed,) = [one for one in world.specs if one.name == "b"]
        world.specs = [one for one in world.specs if one is not removed]
        await world.get("/models?reload=1")
        await until({"model": "b", "event": "model_remove"})
        world.specs.append(removed)
        await world.get("/models?reload=1")
        await until({"model": "*", "event": "models_reload"})
        assert {one["model"] for one in events} == {"a", "b", "*"}
        await world.keeper.close()
        assert (await feed.end()).complete


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.mark.long
async def test_events_are_whole_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = b"data: a\n\ndata: b\ndata: c\n\ndata: "
    for size in range(1, len(sent)):
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        found = [some async for some in whole_events(pieces_of(*pieces))]
        assert b"".join(found) == sent.removesuffix(b"data: ")
        assert all(some.endswith(b"\n\n") for some in found)
    monkeypatch.setattr(feed_module, "MAX_EVENT", 100)
    with pytest.raises(Broken):
        async for _ in whole_events(pieces_of(*[b"x" * 40] * 3)):
            pass
