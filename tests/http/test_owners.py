"""Owners do not meet: what one names, another can neither see, cancel, supersede, hold nor squat."""

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyllmcancel.constraints.bounded import BoundedGuidance
from pyllmcancel.server.config import ApiKey
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import COMPLETIONS, World, open_world, unnamed

KEYS = (ApiKey("ann", "ann's key"), ApiKey("bob", "bob's key"), ApiKey("bob", "bob's other key"))
ANN, BOB = {"authorization": "Bearer ann's key"}, {"authorization": "Bearer bob's key"}
BOBS_OTHER = {"authorization": "Bearer bob's other key"}
ADMIN = {"x-api-key": "root"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(api_keys=KEYS, admin_api_keys=("root",), parallel=4, max_queue=2) as world:
        yield world


def mine(who: dict[str, str], name: str = "mine", **fields: Any) -> dict[str, Any]:
    """The same names for everything, of each owner."""
    return {
        "headers": who | {"x-request-id": name, "x-session-id": "session", "x-supersede": "key"},
        "max_tokens": 100,
        "ignore_eos": True,
    } | fields


async def running(world: World, who: dict[str, str]) -> Exchange:
    world.hold()
    exchange = world.complete(stream=True, **mine(who))
    while not await ids(world, who, "?status=running"):
        await world.step()
    await world.held()
    return exchange


async def ids(world: World, who: dict[str, str], query: str = "") -> list[tuple[str, str]]:
    listed = (await world.get(f"/v1/requests{query}", headers=who)).json()["data"]
    return [(entry["owner"], entry["id"]) for entry in listed]


async def test_two_owners_use_the_same_names_at_once(world: World) -> None:
    anns, bobs = await running(world, ANN), await running(world, BOB)
    assert await ids(world, ANN) == [("ann", "mine")]
    assert await ids(world, BOB) == [("bob", "mine")]
    answer = await world.post("/v1/requests/mine/cancel?wait=false", headers=ANN)
    assert answer.json()["outcome"] == "cancelled"
    await world.step()
    assert "explicit" in (await anns.end()).events[-1]
    assert (await world.get("/v1/requests/mine", headers=BOB)).json()["status"] == "running"
    await world.held()
    assert await ids(world, BOBS_OTHER) == [("bob", "mine")]
    assert (await world.post("/v1/sessions/session/cancel", headers=BOBS_OTHER)).json()["requests"][0]["id"] == "mine"
    assert "explicit" in (await bobs.end()).events[-1]


SOME: tuple[dict[str, Any], ...] = ({"request_ids": ["mine"]}, {"status": "running"}, {"session": "session"})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/v1/requests/mine", None),
        *(("GET", path, None) for path in ("/slots", "/props", "/health", "/v1/requests", "/v1/sessions")),
        *(("GET", f"/v1/{name}", None) for name in ("requests/mine", "requests/cmpl-mine", "sessions/session")),
        *(("POST", f"/v1/{name}/cancel", None) for name in ("requests/mine", "sessions/session")),
        *(("POST", f"/v1/{name}/cancel?hold=0.001", None) for name in ("requests/mine", "sessions/session")),
        ("POST", "/v1/requests/cmpl-mine/cancel?wait=false", None),
        *(("POST", "/v1/requests/cancel", body) for body in SOME),
    ],
)
async def test_no_answer_tells_whether_others_have_something(world: World, method: str, path: str, body: Any) -> None:
    unknown = await world.begin(method, path, body, headers=BOB).end()
    victim = await running(world, ANN)
    answer = await world.begin(method, path, body, headers=BOB).end()
    shown, expected = (re.sub(rb'"request_id": ?"[^"]*"', b"", one.body) for one in (answer, unknown))
    assert (answer.status, shown) == (unknown.status, expected)
    assert victim.status == 200
    assert (await world.get("/v1/requests/mine", headers=ANN)).json()["status"] == "running"


async def test_a_key_and_a_hold_reach_their_owners_requests_only(world: World) -> None:
    assert (await world.post("/v1/requests/mine/cancel?hold=60", headers=BOB)).status == 202
    assert (await world.post("/v1/sessions/session/cancel?hold=60", headers=BOB)).status == 202
    victim = await running(world, ANN)
    assert (await world.complete(**mine(BOB)).end()).json()["error"]["code"] == "explicit"
    assert (await world.get("/v1/requests/mine", headers=ANN)).json()["status"] == "running"
    newer = world.complete(**mine(ANN, "newer"))
    await world.added("newer")
    world.gate.open()
    assert "superseded" in (await victim.end()).events[-1]
    newer.leave()


async def test_one_owner_cannot_fill_the_queue_of_another(world: World) -> None:
    world.hold()
    for number in range(3):
        world.complete(max_tokens=1, headers=ANN | {"x-request-id": f"a{number}"})
        await world.added(f"a{number}")
        await world.held()
    full = await world.complete(max_tokens=1, headers=ANN).end()
    assert full.failure == (429, "queue_full")
    assert "max_queue" in full.json()["error"]["message"]
    bobs = await world.submitted("b", max_tokens=1, headers=BOB)
    world.gate.open()
    assert (await bobs.end()).status == 200


async def test_what_one_owner_prepares_does_not_hold_up_anothers_chat(world: World, monkeypatch: Any) -> None:
    """A schema that cannot be compiled takes seconds to be refused."""
    compiling, may_end = threading.Event(), threading.Event()

    def endlessly(*_: Any, **__: Any) -> None:
        compiling.set()
        assert may_end.wait(LIMIT)

    monkeypatch.setattr(BoundedGuidance, "compile", endlessly)
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    flood = [world.chat(headers=ANN, response_format=schema, max_tokens=1) for _ in range(5)]
    assert await asyncio.to_thread(compiling.wait, LIMIT)
    assert (await world.chat(headers=BOB, max_tokens=1).end()).status == 200
    may_end.set()
    for exchange in flood:
        await exchange.end()


async def test_the_bodies_that_one_owner_sends_leave_room_for_anothers() -> None:
    async with open_world(api_keys=KEYS, max_body=200_000, max_bodies=400_000) as world:
        slow = [world.begin("POST", "/v1/completions", headers=ANN, content=None) for _ in range(3)]
        for exchange in slow:
            exchange.body_arrives(b"x" * 100_000, more=True)
        await slow[2].until_body(b"busy")
        for _ in range(2):  # the first has given its room back
            bobs = await world.complete(max_tokens=1, headers=BOB, metadata={"long": "x" * 190_000}).end()
            assert bobs.status == 200
        slow[0].leave()
        await slow[0].end()
        anns = await world.complete(max_tokens=1, headers=ANN, metadata={"long": "x" * 90_000}).end()
        assert anns.status == 200


async def test_one_owner_cannot_take_all_places_of_readers_of_events() -> None:
    async with open_world(api_keys=KEYS, max_event_clients=4) as world:
        readers = [world.begin("GET", "/v1/events", headers=who) for who in (ANN, ANN)]
        for reader in readers:
            await reader.until_body(b"snapshot")
        assert (await world.get("/v1/events", headers=ANN)).status == 503
        readers.append(world.begin("GET", "/v1/events", headers=BOB))
        await readers[2].until_body(b"snapshot")
        for reader in readers:
            await reader.left()


async def test_a_flood_of_one_owner_leaves_anothers_list_of_ended_requests(world: World) -> None:
    world.engine.registry._history.default_factory = lambda: deque(maxlen=4)
    await world.complete(max_tokens=1, headers=BOB | {"x-request-id": "bobs"}).end()
    for number in range(6):  # more than are remembered of one owner
        await world.complete(max_tokens=1, headers=ANN | {"x-request-id": f"ann{number}"}).end()
    assert await ids(world, BOB, "?status=finished") == [("bob", "bobs")]


async def test_an_administrator_sees_and_cancels_all(world: World) -> None:
    anns, bobs = await running(world, ANN), await running(world, BOB)
    assert sorted(await ids(world, ADMIN)) == [("ann", "mine"), ("bob", "mine")]
    assert await ids(world, ADMIN, "?owner=bob") == [("bob", "mine")]
    assert sum(slot["is_processing"] for slot in (await world.get("/slots", headers=ADMIN)).json()) == 2
    assert (await world.post("/v1/requests/mine/cancel", headers=ADMIN)).refusal == (409, "owner")
    answer = await world.post("/v1/requests/mine/cancel?owner=ann&wait=false", headers=ADMIN)
    assert (answer.status, answer.json()["outcome"]) == (200, "cancelled")
    many = await world.post("/v1/requests/cancel?wait=false", {"owner": "bob"}, headers=ADMIN)
    assert [one["id"] for one in many.json()["data"]] == ["mine"]
    world.gate.open()
    for exchange in (anns, bobs):
        assert "explicit" in (await exchange.end()).events[-1]


@pytest.mark.parametrize("path", ["/v1/requests/mine/cancel?hold=60", "/v1/sessions/session/cancel?hold=60"])
async def test_an_administrator_says_whose_requests_are_held(world: World, path: str) -> None:
    assert (await world.post(path, headers=ADMIN)).refusal == (400, "owner")
    assert (await world.post(f"{path}&owner=ann", headers=ADMIN)).status == 202
    assert (await world.complete(**mine(ANN)).end()).json()["error"]["code"] == "explicit"


@pytest.mark.parametrize("path", ["/metrics", "/v1/steps"])
async def test_what_shows_all_owners_needs_an_administrators_key_unless_there_is_one_owner(
    world: World, path: str
) -> None:
    assert (await world.get(path, headers=ADMIN)).status == 200
    assert (await world.get(path, headers=ANN)).failure == (403, "admin_only")
    async with open_world(api_keys=KEYS[1:]) as alone:
        assert (await alone.get(path, headers=BOB)).status == 200


@pytest.mark.parametrize("path", ["/v1/requests?owner=ann", "/v1/sessions?owner=ann", "/v1/requests/mine?owner=ann"])
async def test_only_an_administrator_names_other_owners(world: World, path: str) -> None:
    assert (await world.get(path, headers=BOB)).refusal == (403, "owner")
    assert (await world.get(path.replace("=ann", "=bob"), headers=BOB)).status in (200, 404)


async def test_a_cached_prefix_is_its_owners(world: World) -> None:
    """The number of cached tokens, and the time to the first one, would tell what another has asked."""
    cached = []
    for who in (ANN, BOB, ANN, BOB):
        answer = await world.complete("a" * 200, max_tokens=2, headers=who).end()
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100)
    assert cached == [False, False, True, True]


# -- keys: what needs one, and that nothing else of a request is looked at before --------------------------------------


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "Bearer  {} ", ""])
@pytest.mark.parametrize("key", ["first", "second", "schlüssel", "voilà", "à"])
async def test_each_of_the_keys_opens_in_either_header_as_it_was_typed(key: str, form: str) -> None:
    """The last byte of an à is a blank in Latin-1, but none of the header's."""
    async with open_world(api_keys=unnamed("first", "second", "schlüssel", "voilà", "à")) as world:
        # Headers are bytes; a client sends what was typed as UTF-8.
        sent = key.encode().decode("latin-1")
        headers = {"authorization": form.format(sent)} if form else {"x-api-key": sent}
        assert (await world.get("/v1/models", headers=headers)).status == 200
        assert (await world.get("/v1/models", headers={"x-api-key": sent + "x"})).status == 401


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first", "first"])
async def test_anything_else_is_401(authorization: str | None) -> None:
    async with open_world(api_keys=unnamed("first")) as world:
        headers = {} if authorization is None else {"authorization": authorization}
        exchange = await world.complete(headers=headers | {"x-request-id": "mine"}).end()
        assert exchange.status == 401
        expected = {"x-should-retry": "false", "x-request-id": "mine", "www-authenticate": "Bearer"}
        assert {name: exchange.headers[name] for name in expected} == expected
        error = exchange.json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        assert error["request_id"] == "mine"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in ("/metrics", "/v1/models", "/v1/requests", "/v1/steps", "/nowhere")),
        *(("POST", path) for path in ("/v1/requests/x/cancel", "/v1/sessions/x/cancel", COMPLETIONS)),
    ],
)
async def test_only_health_is_open_without_a_key(method: str, path: str) -> None:
    async with open_world(api_keys=unnamed("first")) as world:
        assert (await world.begin(method, path).end()).status == 401
        for health in ("/health", "/v1/health"):
            assert (await world.get(health)).json() == {"status": "ok", "waiting": 0, "running": 0}
