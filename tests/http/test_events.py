"""``GET /v1/events``: what readers are told, in which order, and how a stream of it begins, goes on and ends."""

import asyncio
from typing import Any

import jsonschema
import pytest

from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.live.facts import Ring
from tests.support.feed_client import FeedClient, Told
from tests.support.http_world import World, open_world

KEYS = (ApiKey("ann", "ann's key"), ApiKey("bob", "bob's key"))
ANN, BOB = {"authorization": "Bearer ann's key"}, {"authorization": "Bearer bob's key"}
ADMIN = {"x-api-key": "root"}


def named(request_id: str, **headers: str) -> dict[str, str]:
    return {"x-request-id": request_id, **headers}


def of(events: list[Told], request_id: str) -> list[str]:
    return [event.type for event in events if event.request_id == request_id]


def entry(events: list[Told], request_id: str, kind: str = "ended") -> dict[str, Any]:
    (found,) = [event.data["request"] for event in events if event.type == kind and event.request_id == request_id]
    return dict(found)


async def reading(world: World, *arguments: Any) -> FeedClient:
    """A reader that has its snapshot."""
    feed = FeedClient(world, *arguments)
    await feed.began()
    return feed


async def test_a_snapshot_then_what_happens_in_its_order_with_ids_that_grow(world: World) -> None:
    feed = FeedClient(world)
    snapshot = await feed.began()
    await world.complete(max_tokens=3, ignore_eos=True, headers=named("mine")).end()
    events = await feed.ended("mine")
    assert feed.exchange.headers["content-type"].startswith("text/event-stream")
    assert {event.boot for event in events} == {snapshot["server"]["boot"]}
    numbers = [event.number for event in events]
    assert numbers == sorted(set(numbers))
    assert of(events, "mine") == ["added", "admitted", "ended"]
    steps = [event.data for event in events if event.type == "step"]
    assert sum(step["n_steps"] for step in steps) == 3
    assert sum(part["n_tokens"] for step in steps for part in step["sequences"]) == 5 + 2
    assert all(step["at"] < step["until"] and step["busy"] > 0 for step in steps)
    admitted, last = entry(events, "mine", "added"), entry(events, "mine")
    assert (admitted["status"], last["status"], last["finish_reason"]) == ("waiting", "finished", "length")
    times = last["times"]
    assert times["arrived"] < times["admitted"] < times["first_token"] < times["ended"]
    assert (times["cancelled"], last["max_tokens"]) == (None, 3)


async def test_a_snapshot_says_what_is_there_and_every_event_is_as_described() -> None:
    async with open_world(parallel=1) as world:
        await world.complete(max_tokens=1, headers=named("older")).end()
        await world.complete(max_tokens=1, headers=named("newer", **{"x-session-id": "s"})).end()
        await world.running_stream("running")
        world.complete(headers=named("waiting"))
        await world.added("waiting")
        feed = FeedClient(world)
        snapshot = await feed.began()
        assert [one["id"] for one in snapshot["requests"]] == ["running", "waiting", "older", "newer"]
        assert [one["id"] for one in snapshot["sessions"]] == ["s"]
        assert (snapshot["reason"], snapshot["all_owners"], snapshot["exposes_prompts"]) == ("new", True, False)
        assert snapshot["capacity"] == {"slots": 1, "cells": 1024, "n_ctx": 1024}
        assert (snapshot["stats"]["running"], snapshot["stats"]["waiting"]) == (1, 1)
        await world.post("/v1/requests/running/cancel?wait=false")
        world.gate.open()
        await feed.ended("running", "waiting")
        page = world.app.openapi()
        for event in await feed.until(lambda events: "stats" in {event.type for event in events}):
            name = f"{event.type.capitalize()}Event"
            schema = {"$ref": f"#/components/schemas/{name}", "components": page["components"]}
            jsonschema.validate(event.data, schema)
        assert {"snapshot", "step", "cancelled", "ended", "stats"} <= set(feed.types)


async def test_a_cancel_is_told_before_the_end_with_its_reason_its_time_and_what_it_saved(world: World) -> None:
    feed = await reading(world)
    await world.running_stream("mine", prompt=[1] * 10, max_tokens=100)
    await world.post("/v1/requests/mine/cancel?wait=false")
    world.gate.open()
    events = await feed.ended("mine")
    assert of(events, "mine") == ["added", "admitted", "cancelled", "ended"]
    (cancelled,) = [event.data for event in events if event.type == "cancelled"]
    assert (cancelled["reason"], cancelled["superseded_by"]) == ("explicit", None)
    last = entry(events, "mine")
    assert last["times"]["cancelled"] == cancelled["at"]
    assert last["cancel_latency_ms"] > 0
    await feed.until(lambda events: last_stats(events)["cancels"]["explicit"])
    stats = last_stats(feed.events)
    assert (stats["saved_tokens"], stats["generated_tokens"], stats["running"]) == (110, 0, 0)
    assert stats["aborted_steps"] == 1
    assert b"pyllmcancel_tokens_saved_total 110.0" in world.metrics.exposition()


async def test_a_superseded_request_names_its_successor() -> None:
    async with open_world(parallel=1) as world:
        feed = await reading(world)
        await world.running_stream("neighbour")
        for request_id in ("old", "new"):
            world.complete(max_tokens=1, headers=named(request_id, **{"x-supersede": "k"}))
            await world.added(request_id)
        world.gate.open()
        events = await feed.ended("old", "new")
        assert of(events, "old") == ["added", "cancelled", "ended"]
        (cancelled,) = [event.data for event in events if event.type == "cancelled"]
        assert (cancelled["id"], cancelled["reason"], cancelled["superseded_by"]) == ("old", "superseded", "new")


async def test_an_answer_without_a_limit_counts_as_long_as_such_answers_usually_are() -> None:
    async with open_world(parallel=1) as world:
        for n_prompt in (1000, 900, 990):  # the answers fill the context of 1,024
            await world.complete(prompt=[1] * n_prompt, max_tokens=None).end()
        await world.running_stream("mine", prompt=[1] * 10, max_tokens=None)
        await world.bring_about("explicit")
        world.gate.open()
        await world.ended("mine")
        assert world.metrics.totals().saved_tokens == 10 + 1024 - 990


def last_stats(events: list[Told]) -> dict[str, Any]:
    """Return the last statistics. They may already count events that are sent after them, and are then not sent
    again.
    """
    return next(event.data for event in reversed(events) if event.type == "stats")


# -- where a reader goes on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_header", [True, False])
async def test_a_reader_goes_on_where_it_was_and_misses_nothing(world: World, by_header: bool) -> None:
    stays = FeedClient(world)
    leaves = FeedClient(world)
    await stays.began()
    last = (await leaves.until(bool))[-1].id
    await leaves.leave()
    for name in ("a", "b"):
        await world.complete(max_tokens=2, headers=named(name)).end()
    await stays.ended("a", "b")
    again = FeedClient(world, headers={"last-event-id": last}) if by_header else None
    again = again or FeedClient(world, f"?last_event_id={last}")
    assert "snapshot" not in [event.type for event in await again.ended("a", "b")]
    known = len(again.events)
    assert again.events == stays.events[1 : known + 1]


@pytest.mark.parametrize("event_id", ["x", "9" * 5000, "00000000-1", "%2D", "\u00e9"])
async def test_an_id_that_is_not_known_starts_anew(world: World, event_id: str) -> None:
    feed = FeedClient(world, headers={"last-event-id": event_id})
    assert (await feed.began())["reason"] == "unknown_id"


async def test_what_is_not_remembered_any_more_starts_anew(world: World) -> None:
    world.app.state.server.feed.ring = Ring(kept=4)
    first = FeedClient(world)
    begin = (await first.until(bool))[0].id
    await first.leave()
    for name in "abc":
        await world.complete(max_tokens=1, headers=named(name)).end()
    feed = FeedClient(world, headers={"last-event-id": begin})
    assert (await feed.began())["reason"] == "too_old"


async def test_one_that_does_not_read_is_dropped_and_others_are_not(world: World) -> None:
    world.app.state.server.feed.ring = Ring(kept=8)
    slow, quick = await reading(world), await reading(world)
    slow.exchange.stop_reading()
    for name in "abcdef":
        await world.complete(max_tokens=1, headers=named(name)).end()
        await quick.ended(name)
    await slow.exchange.end()
    assert not slow.exchange.complete
    assert world.app.state.server.feed.n_readers == 1


# -- who sees what ----------------------------------------------------------------------------------------------------


async def test_owners_never_see_each_other_and_an_administrator_sees_both() -> None:
    async with open_world(api_keys=KEYS, admin_api_keys=("root",), parallel=2) as world:
        asked = {"ann": ("", ANN), "bob": ("", BOB), "all": ("", ADMIN), "bob's": ("?owner=bob", ADMIN)}
        readers = {name: await reading(world, *how) for name, how in asked.items()}
        world.hold()
        for who, name in ((ANN, "anns"), (BOB, "bobs")):
            own = named(f"{name}-request", **who, **{"x-session-id": f"{name}-session", "x-supersede": f"{name}-key"})
            world.complete(max_tokens=20, ignore_eos=True, headers=own)
            await world.added(f"{name}-request")
        await world.step(8)
        for who, name in ((ANN, "anns"), (BOB, "bobs")):
            await world.post(f"/v1/requests/{name}-request/cancel?wait=false", headers=who)
        world.gate.open()
        await readers["all"].ended("anns-request", "bobs-request")
        for name, reader in readers.items():
            await reader.ended("anns-request" if name == "ann" else "bobs-request")
        late = {"ann": FeedClient(world, headers=ANN), "bob": FeedClient(world, headers=BOB)}
        assert [one["id"] for one in (await late["ann"].began())["requests"]] == ["anns-request"]
        assert [one["id"] for one in (await late["bob"].began())["sessions"]] == ["bobs-session"]
        seen = {name: reader.exchange.body.decode() for name, reader in (readers | {"late": late["ann"]}).items()}
        assert not [name for name in ("ann", "late") if "bob" in seen[name]]
        assert not [name for name in ("bob", "bob's") if "anns" in seen[name]]
        assert all(f"{name}-request" in seen["all"] for name in ("anns", "bobs"))
        others = [event.data["others"] for event in readers["ann"].events if event.type == "step"]
        assert sum(others) > 0
        assert not any(event.data.get("others") for event in readers["all"].events)
        assert [name for name, reader in readers.items() if "stats" in reader.types] == ["all"]
        snapshots = {name: reader.events[0].data for name, reader in readers.items()}
        assert [name for name, data in snapshots.items() if data["all_owners"]] == ["all"]
        assert [name for name, data in snapshots.items() if "stats" in data] == ["all"]


async def test_an_owner_who_goes_on_is_not_told_what_was_others() -> None:
    async with open_world(api_keys=KEYS) as world:
        first = FeedClient(world, headers=ANN)
        begin = (await first.until(bool))[0].id
        for who, name in ((BOB, "bobs"), (ANN, "anns")):
            await world.complete(max_tokens=1, headers=named(name, **who)).end()
        await first.ended("anns")
        again = FeedClient(world, headers=ANN | {"last-event-id": begin})
        assert "bobs" not in str(await again.ended("anns"))


async def test_another_owners_feed_is_refused_and_the_only_owner_sees_everything() -> None:
    async with open_world(api_keys=KEYS) as world:
        assert (await world.get("/v1/events?owner=bob", headers=ANN)).failure == (403, "admin_only")
        assert (await world.get("/v1/events")).status == 401
    async with open_world(api_keys=KEYS[:1], sse_ping_interval=0.01) as world:
        feed = FeedClient(world, headers=ANN)
        snapshot = await feed.began()
        assert snapshot["all_owners"]
        assert "stats" in snapshot
        await feed.exchange.until_body(b": ping\n\n: ping\n\n")
        assert feed.types == ["snapshot"], "silence is broken by comments"


# -- filters, limits, texts -------------------------------------------------------------------------------------------


async def test_only_the_types_that_are_named_come_and_a_snapshot(world: World) -> None:
    feed = await reading(world, "?types=added,ended")
    await world.complete(max_tokens=2, headers=named("mine")).end()
    await feed.ended("mine")
    assert feed.types == ["snapshot", "added", "ended"]


async def test_more_readers_than_there_are_places_are_told_to_come_again() -> None:
    async with open_world(max_event_clients=2) as world:
        readers = [FeedClient(world) for _ in range(2)]
        for reader in readers:
            await reader.began()
        refused = await world.get("/v1/events")
        assert refused.failure == (503, "too_many_readers")
        assert int(refused.headers["retry-after"]) > 0
        await readers[0].leave()
        assert (await FeedClient(world).began())["reason"] == "new"


async def test_texts_are_shown_only_where_they_are_exposed() -> None:
    for exposed in (False, True):
        async with open_world(expose_prompts=exposed) as world:
            world.model.answers[b"the prompt"] = b"the answer"
            await world.complete("the prompt", headers=named("before")).end()
            feed = FeedClient(world)
            snapshot = await feed.began()
            await world.complete("the prompt", headers=named("after")).end()
            events = await feed.ended("after")
            (before,) = snapshot["requests"]
            came, went = entry(events, "after", "added"), entry(events, "after")
            assert snapshot["exposes_prompts"] is exposed
            if exposed:
                found = [(one["prompt"], one["output"]) for one in (came, went, before)]
                assert found == [("the prompt", None), *[("the prompt", "the answer")] * 2]
            else:
                assert not {"prompt", "output"} & {*came, *went, *before}
                assert b"the prompt" not in feed.exchange.body


async def test_what_clients_name_stays_json_whatever_it_looks_like() -> None:
    async with open_world(expose_prompts=True) as world:
        markup = '</script><img src=x onerror="alert(1)">'
        nasty = markup + "\n\ndata: {}\r\n\u2028id: 1"
        feed = await reading(world)
        await world.complete(nasty, max_tokens=1, session_id=markup, headers=named("mine")).end()
        last = entry(await feed.ended("mine"), "mine")
        assert (last["session"], last["prompt"]) == (markup, nasty)
        (session,) = (await FeedClient(world).began())["sessions"]
        assert session["id"] == markup


# -- how it ends ------------------------------------------------------------------------------------------------------


async def test_at_the_shutdown_readers_are_told_the_last_and_then_the_end(world: World) -> None:
    feed = await reading(world)
    await world.running_stream("mine", max_tokens=100)
    closing = asyncio.create_task(world.shut_down())
    await world.cancelling("mine")
    world.gate.open()
    await closing
    await feed.exchange.end()
    assert feed.exchange.complete
    assert of(feed.events, "mine") == ["added", "admitted", "cancelled", "ended"]
    assert entry(feed.events, "mine")["cancel_reason"] == "shutdown"
    assert (await world.get("/v1/events")).failure == (503, "shutdown")


async def test_an_engine_that_dies_ends_the_feed() -> None:
    world = World()
    try:
        feed = await reading(world)
        world.metrics.on_step_done = die
        await world.complete(headers=named("mine")).end()
        await feed.exchange.end()
        assert feed.exchange.complete
        assert entry(feed.events, "mine")["status"] == "error"
        assert (await world.get("/v1/events")).status == 503
    finally:
        await world.close()


def die(_: object) -> None:
    raise MemoryError
