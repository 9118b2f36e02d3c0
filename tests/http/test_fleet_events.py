"""The feed of several servers: what readers of one are told of all, and what peers that leave, hang or lie cost."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema
import pytest

from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.discovery import Place
from pyllmcancel.server.fleet.events import feed as feed_module
from pyllmcancel.server.fleet.events import upstream as upstream_module
from pyllmcancel.server.fleet.events.feed import Backlog
from pyllmcancel.server.fleet.events.relayed import Relayed, relayed
from pyllmcancel.server.fleet.events.upstream import FIRST_PAUSE
from pyllmcancel.server.fleet.peer import Peer
from pyllmcancel.server.fleet.peer_client import NoAnswer, heard
from pyllmcancel.server.fleet.slots import TOO_MUCH_AT_ONCE
from pyllmcancel.server.fleet.transport import Answer
from tests.support.feed_client import FeedClient, Told
from tests.support.fleet import open_fleet
from tests.support.http_asgi import LIMIT
from tests.support.http_world import World, open_world
from tests.support.peers import Wires, join, open_peers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from starlette.types import Receive, Scope, Send

    from pyllmcancel.server.fleet.messages import Message

pytestmark = pytest.mark.anyio

KEYS = (ApiKey("ann", "ann's key"), ApiKey("bob", "bob's key"))
ANN, ROOT = {"authorization": "Bearer ann's key"}, {"authorization": "Bearer root"}
OWNED = {"api_keys": KEYS, "admin_api_keys": ("root",)}


def replicas(events: Iterable[Told], kind: str) -> set[str]:
    return {event.data["replica"] for event in events if event.type == kind}


def of(events: Iterable[Told], request_id: str) -> list[tuple[str, str]]:
    """Return the events of one request, with their replicas."""
    return [(event.type, event.data["replica"]) for event in events if event.request_id == request_id]


async def reader(world: World, *names: str, query: str = "", headers: dict[str, str] | None = None) -> FeedClient:
    """One that has the snapshots of these replicas."""
    client = FeedClient(world, query, headers)
    await client.until(lambda events: replicas(events, "snapshot") >= set(names))
    return client


async def complete(world: World, name: str, who: dict[str, str] | None = None) -> None:
    await world.complete(max_tokens=2, ignore_eos=True, headers={"x-request-id": name} | (who or {})).end()


async def test_a_reader_is_told_what_happens_on_all_servers_and_where() -> None:
    async with open_peers("a", "b", "c") as (_, (a, b, c)):
        client = await reader(a, "a", "b", "c")
        for world, name in ((a, "1"), (b, "2"), (c, "3")):
            await complete(world, name)
        events = await client.ended("1", "2", "3")
        for name, replica in (("1", "a"), ("2", "b"), ("3", "c")):
            assert of(events, name) == [(kind, replica) for kind in ("added", "admitted", "ended")]
        assert not any("replica" in event.data["request"] for event in events if event.type in ("added", "ended"))
        assert replicas(events, "step") == {"a", "b", "c"}
        assert all("owners" not in event.data for event in events)
        boots = {event.data["replica"]: event.data["server"]["boot"] for event in events if event.type == "snapshot"}
        assert len(set(boots.values())) == 3
        happened = [event.data["replica"] for event in events if event.type not in ("snapshot", "replica")]
        shown = (await a.get("/metrics")).body.decode().splitlines()
        (kept,) = (float(line.split()[1]) for line in shown if line.startswith("pyllmcancel_events_kept "))
        assert kept >= len(happened) + happened.count("a"), "its own are in its own feed, too"
        page = a.app.openapi()
        for event in events:
            names = {"snapshot": "SnapshotEvent", "step": "StepEvent", "replica": "ReplicaEvent"}
            name = names.get(event.type, f"{event.type.capitalize()}Event")
            jsonschema.validate(event.data, {"$ref": f"#/components/schemas/{name}"} | page)


async def test_one_connection_reads_a_peer_however_many_read_here_and_only_while_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "GRACE_SECONDS", 0.0)
    async with open_peers("a", "b") as (wires, (a, b)):
        assert wires.n_followed == {}
        clients = [await reader(a, "a", "b") for _ in range(5)]
        assert (wires.reading("b"), wires.reading("a")) == (1, 0)
        await complete(b, "r")
        for client in clients:
            await client.ended("r")
            await client.leave()
        async with asyncio.timeout(LIMIT):
            while wires.reading("b"):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
        assert wires.n_followed == {"b": 1}
        assert b.app.state.server.feed.n_readers == a.app.state.server.feed.n_readers == 0


async def test_two_that_read_each_other_tell_everything_once() -> None:
    async with open_peers("a", "b") as (wires, (a, b)):
        clients = [await reader(a, "a", "b"), await reader(b, "a", "b")]
        await complete(a, "r")
        await complete(b, "last")
        for client in clients:
            events = await client.ended("r", "last")
            assert of(events, "r") == [(kind, "a") for kind in ("added", "admitted", "ended")]
        assert (wires.reading("a"), wires.reading("b")) == (1, 1)


async def test_a_later_reader_gets_how_things_stand_everywhere() -> None:
    async with open_peers("a", "b") as (_, (a, b)):
        await reader(a, "a", "b")
        await complete(b, "over")
        b.hold()
        b.complete(max_tokens=9, headers={"x-request-id": "live", "x-session-id": "s"})
        await b.added("live")
        client = FeedClient(a)
        events = await client.until(lambda events: replicas(events, "snapshot") == {"a", "b"})
        assert [(event.type, event.data["replica"]) for event in events[:2]] == [("snapshot", "a"), ("snapshot", "b")]
        assert [bool(event.id) for event in events[:2]] == [False, True]
        snapshot = events[1].data
        assert all("replica" not in one for one in snapshot["requests"])
        assert all("replicas" not in one for one in snapshot["sessions"])
        assert ([one["id"] for one in snapshot["requests"]], snapshot["reason"]) == (["live", "over"], "new")
        assert [one["id"] for one in snapshot["sessions"]] == ["s"]


async def test_a_reader_goes_on_where_it_was() -> None:
    async with open_peers("a", "b") as (_, (a, b)):
        client = await reader(a, "a", "b")
        await complete(b, "1")
        events = await client.ended("1")
        await client.leave()
        await complete(b, "2")
        again = FeedClient(a, headers={"last-event-id": events[-1].id})
        since = await again.ended("2")
        assert "snapshot" not in {event.type for event in since}
        assert of(since, "2") == [(kind, "b") for kind in ("added", "admitted", "ended")]
        assert of(since, "1") == []
        unknown = await reader(a, "a", "b", headers={"last-event-id": "ffffffff-1"})
        # Statistics may come between two snapshots.
        assert {event.data["reason"] for event in unknown.events if event.type == "snapshot"} == {"unknown_id"}


async def test_one_server_is_read_by_its_name() -> None:
    async with open_peers("a", "b") as (_, (a, b)):
        own, other = await reader(a, "a", query="?replica=a"), await reader(a, "b", query="?replica=b")
        await complete(a, "1")
        await complete(b, "2")
        assert replicas(await own.ended("1"), "step") == {"a"}
        assert {event.data["replica"] for event in await other.ended("2")} == {"b"}
        answer = await a.get("/v1/events?replica=nobody")
        assert (answer.status, answer.json()["error"]["code"]) == (404, "unknown_replica")


async def test_types_are_chosen_on_all_servers() -> None:
    async with open_peers("a", "b") as (_, (a, b)):
        client = await reader(a, "a", "b", query="?types=ended")
        await complete(b, "r")
        # The replicas that there are, are told in any case.
        assert {event.type for event in await client.ended("r")} == {"snapshot", "replica", "ended"}


async def test_owners_see_their_own_on_all_servers_and_an_administrator_everything() -> None:
    async with open_peers("a", "b", **OWNED) as (_, (a, b)):
        await complete(b, "anns-first", ANN)
        await complete(b, "bobs-first", {"authorization": "Bearer bob's key"})
        root = await reader(a, "a", "b", headers=ROOT)
        ann = await reader(a, "a", "b", headers=ANN)
        (snapshot,) = [e.data for e in ann.events if e.type == "snapshot" and e.data["replica"] == "b"]
        assert [one["id"] for one in snapshot["requests"]] == ["anns-first"]
        assert (snapshot["all_owners"], "stats" in snapshot) == (False, False)
        b.hold()
        his = b.complete(
            max_tokens=3, ignore_eos=True, headers={"x-request-id": "his", "authorization": "Bearer bob's key"}
        )
        await b.added("his")
        hers = b.complete(max_tokens=3, ignore_eos=True, headers={"x-request-id": "hers"} | ANN)
        await b.added("hers")
        b.gate.open()
        await his.end()
        await hers.end()
        events = await ann.ended("hers")
        assert {e.data.get("owner") or e.data["request"]["owner"] for e in events if e.request_id} == {"ann"}
        steps = [e.data for e in events if e.type == "step"]
        assert {part["request"] for step in steps for part in step["sequences"]} == {"hers"}
        assert sum(step["others"] for step in steps) > 0
        seen = await root.ended("his", "hers")
        assert {part["request"] for e in seen if e.type == "step" for part in e.data["sequences"]} >= {"his", "hers"}
        narrowed = await reader(a, "a", "b", query="?owner=ann", headers=ROOT)
        assert {one["owner"] for e in narrowed.events for one in e.data["requests"]} == {"ann"}


async def test_the_only_owner_of_a_server_sees_no_others_of_a_peer_with_other_keys() -> None:
    async with open_peers("b", api_keys=KEYS) as (wires, (b,)), open_world(api_keys=KEYS[:1]) as a:
        join(wires, a, "a", ("a", "b"))
        bob = {"authorization": "Bearer bob's key"}
        await complete(b, "his-first", bob)
        first, second = await reader(a, "a", "b", headers=ANN), await reader(a, "a", "b", headers=ANN)
        await complete(b, "his", bob)
        await complete(b, "hers", ANN)
        for client in (first, second):
            events = await client.ended("hers")
            (snapshot,) = [e.data for e in events if e.type == "snapshot" and e.data["replica"] == "b"]
            assert (snapshot["requests"], snapshot["all_owners"], "stats" in snapshot) == ([], False, True)
            assert not [e for e in events if e.request_id == "his"]
            assert {p["request"] for e in events if e.type == "step" for p in e.data["sequences"]} == {"hers"}


async def test_the_first_reader_of_an_owner_sees_no_others_in_a_peers_snapshot() -> None:
    async with open_peers("a", "b", **OWNED) as (_, (a, b)):
        await complete(b, "hers", ANN)
        await complete(b, "his", {"authorization": "Bearer bob's key"})
        client = await reader(a, "a", "b", headers=ANN)
        (snapshot,) = [e.data for e in client.events if e.type == "snapshot" and e.data["replica"] == "b"]
        assert [one["id"] for one in snapshot["requests"]] == ["hers"]
        assert (snapshot["all_owners"], "stats" in snapshot) == (False, False)


async def test_a_peer_that_goes_is_told_and_begins_anew_when_it_is_back() -> None:
    async with open_peers("a", "b") as (wires, (a, b)):
        client = await reader(a, "a", "b")
        back = wires.apps["b"]
        wires.cut("b")
        events = await client.until(lambda events: any(e.data.get("state") == "lost" for e in events))
        assert events[-1].data["replica"] == "b"
        late = FeedClient(a)
        told = await late.until(lambda events: len(events) >= 2)
        assert [(e.type, e.data["replica"], e.data.get("state")) for e in told[:2]] == [
            ("snapshot", "a", None),
            ("replica", "b", "lost"),
        ]
        wires.apps["b"] = back
        (peer,) = [one for one in a.app.state.server.fleet.feed._peers if one.address.host == "b"]
        peer.look_now()
        await late.until(lambda events: "b" in replicas(events, "snapshot"))
        await complete(b, "r")
        for one in (client, late):
            assert of(await one.ended("r"), "r") == [(kind, "b") for kind in ("added", "admitted", "ended")]


async def test_a_reader_that_gets_no_snapshot_of_a_peer_has_its_feed_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Peer, "ask", answering("makes no sense"))
    async with open_peers("a", "b") as (wires, (a, _b)):
        client = await reader(a, "a", "b")
        late = await reader(a, "a", "b")
        assert [e.data["why"] for e in late.events if e.type == "replica"][:2] == ["makes no sense", "is read anew"]
        assert [e.data["why"] for e in client.events if e.data.get("state") == "lost"] == ["is read anew"]
        again = FeedClient(a)
        await again.until(lambda events: len(events) >= 2)
        assert again.events[1].data["why"] == "makes no sense"
        assert wires.n_followed == {"b": 2}  # not at once


async def test_who_asks_a_peer_too_much_takes_its_feed_from_no_other_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_peers("a", "b") as (wires, (a, b)):
        client = await reader(a, "a", "b")
        monkeypatch.setattr(Peer, "ask", answering("is asked too many questions at once"))
        late = FeedClient(a)
        await late.until(lambda events: len(events) >= 2)
        assert late.events[1].data["why"] == "is asked too many questions at once"
        await complete(b, "r")
        assert all(event.data.get("state") != "lost" for event in await client.ended("r"))
        assert wires.n_followed == {"b": 1}


async def test_who_was_asking_too_much_asks_again_and_gets_its_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.server.fleet.events.snapshots.PAUSES", (0.0, 0.0))
    ask, n_refused = Peer.ask, 0

    async def ask_later(peer: Peer, message: Message) -> Answer:
        nonlocal n_refused
        n_refused += 1
        return await (ask if n_refused > 2 else answering(TOO_MUCH_AT_ONCE))(peer, message)

    async with open_peers("a", "b") as (_, (a, _b)):
        await reader(a, "a", "b")
        monkeypatch.setattr(Peer, "ask", ask_later)
        late = await reader(a, "a", "b")
        assert [event.type for event in late.events] == ["snapshot", "snapshot"]


async def test_a_feed_of_which_nothing_is_heard_for_long_is_read_anew() -> None:
    class Dead(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            raise httpx.ReadTimeout("")
            yield b""

    with pytest.raises(NoAnswer, match="sent nothing for 60 s"):
        async for _ in heard(httpx.Response(200, stream=Dead())):
            pass


def answering(why: str) -> Callable[[Peer, Message], Awaitable[Answer]]:
    async def ask(peer: Peer, _message: Message) -> Answer:
        return Answer(peer.name, None, why)

    return ask


async def test_a_peer_that_comes_and_goes_by_its_name_is_read_and_forgotten() -> None:
    async with open_peers("a") as (wires, (a,)):
        client = await reader(a, "a")
        async with open_peers("z") as (_, (b,)):
            join(wires, b, "b", ("a", "b"))
            transport = a.app.state.server.fleet._transport
            transport._use({Place(Address("http", "b", 1), None)})
            await client.until(lambda events: "b" in replicas(events, "snapshot"))
            wires.cut("b")
            await client.until(lambda events: events[-1].data.get("state") == "lost")
            await transport._keep({one for one in transport._lines if one.address.host != "b"})
            events = await client.until(lambda events: events[-1].data.get("state") == "gone")
            assert (events[-1].type, events[-1].data["replica"]) == ("replica", "b")


class Liar:
    """A peer whose feed is what a test says, after a greeting that is honest."""

    def __init__(self, wires: Wires, *pieces: bytes) -> None:
        self._honest = wires.apps["b"]
        self._pieces = pieces
        self.n_asked = 0
        wires.apps["b"] = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if b'"kind":"follow"' not in message["body"]:

            async def again() -> Any:
                return message

            await self._honest(scope, again, send)
            return
        self.n_asked += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await receive()


def event(**fields: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(fields).encode()


STEP = {"type": "step", "number": 1, "n_steps": 1, "at": 1.0, "until": 2.0, "busy": 1.0, "status": "ok"}
STEP |= {"spared": False, "survivors": 0, "wasted": 0, "threads": 1, "others": 0}
PART = {"request": "r", "choice": 0, "slot": 0, "phase": "decode", "n_tokens": 1}


@pytest.mark.parametrize(
    "piece",
    [
        b"data: {\n\n",
        event(type="added", request={}),
        event(type="replica", replica="a", state="gone", why=None, epoch=0.0),
        event(**STEP, sequences=[PART], owners=[]),
        event(**STEP, sequences=[PART]),
        event(type="admitted", at=float("nan"), id="r", owner="", slots=[], cached_tokens=0),
        b"data: " + b"[" * 200 + b"\n\n",
        b"data: [" + b"1," * 1_000_001 + b"1]\n\n",
    ],
)
async def test_a_peer_that_makes_no_sense_is_told_and_nothing_of_it_is_passed_on(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss is told after what is told before it, which may take as long as it takes to try again.
    monkeypatch.setattr(upstream_module, "FIRST_PAUSE", LIMIT)
    async with open_peers("a", "b") as (wires, (a, _)):
        liar = Liar(wires, piece)
        client = FeedClient(a)
        events = await client.until(lambda events: any(e.data.get("state") == "lost" for e in events))
        assert [e.data["why"] for e in events if e.data.get("state") == "lost"] == ["sends an invalid feed"]
        assert {e.data["replica"] for e in events if e.type not in ("replica", "snapshot")} <= {"a"}
        assert liar.n_asked == 1


async def test_one_good_event_does_not_bring_the_next_try_forward() -> None:
    async with open_peers("a", "b") as (wires, (a, _)):
        liar = Liar(wires, event(type="admitted", at=1.0, id="r", owner="", slots=[], cached_tokens=0), b"data: {\n\n")
        client = FeedClient(a)
        await client.until(lambda events: sum(e.data.get("state") == "lost" for e in events) == 3)
        (upstream,) = [one for one in a.app.state.server.fleet.feed.upstreams("b") if one.is_live or one.state]
        assert (liar.n_asked, upstream._pause >= 4 * FIRST_PAUSE) == (3, True)


async def test_an_event_without_an_end_is_not_kept() -> None:
    async with open_peers("a", "b") as (wires, (a, _)):
        Liar(wires, *[b"data: " + b"x" * (1 << 20)] * 20)
        client = FeedClient(a)
        events = await client.until(lambda events: any(e.data.get("state") == "lost" for e in events))
        assert events[-1].data["why"] == "sends an invalid feed"


def test_what_a_peer_adds_is_not_passed_on_nor_that_it_is_another_one() -> None:
    told = relayed("b", json.dumps(STEP | {"sequences": [PART], "owners": ["ann"], "replica": "a"}).encode())
    found = json.loads(told.data)
    assert (found["replica"], "owners" in found, told.owners) == ("b", False, ("ann",))


def item(size: int) -> Relayed:
    return Relayed("b", "stats", (), b"x" * (size - 400))


def test_what_is_remembered_is_bounded_in_number_and_in_bytes() -> None:
    backlog = Backlog(kept=100, most_bytes=100_000)
    for _ in range(1_000):
        backlog.extend([item(500)])
        assert backlog.newest - backlog.first < 100
    for _ in range(1_000):
        backlog.extend([item(10_000)])
        kept = backlog.after(backlog.first - 1, 1_000)
        assert sum(one.n_bytes for one in kept if isinstance(one, Relayed)) == backlog._n_bytes <= 100_000
    assert not backlog.remembers(backlog.first - 2)
    assert backlog.remembers(backlog.newest)


async def test_a_reader_that_does_not_read_is_dropped_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_peers("a", "b") as (_, (a, b)):
        whole = a.app.state.server.fleet.feed
        slow, quick = await reader(a, "a", "b"), await reader(a, "a", "b")
        whole.ring._most_bytes = 20_000
        slow.exchange.stop_reading()
        for number in range(30):
            await complete(b, f"r{number}")
            await quick.ended(f"r{number}")
        async with asyncio.timeout(LIMIT):
            await asyncio.wait({slow.exchange.task})
        assert not quick.exchange.task.done()
        assert len(whole._readers) == 1


async def test_readers_of_all_servers_have_the_seats_of_the_feed() -> None:
    async with open_peers("a", "b", max_event_clients=2) as (_, (a, _b)):
        await reader(a, "a", "b")
        await reader(a, "a", query="?replica=a")
        answer = await a.get("/v1/events")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "too_many_readers")


async def test_a_peer_without_a_seat_for_this_server_is_named() -> None:
    async with open_peers("a", "b", max_event_clients=1) as (_, (a, b)):
        await reader(b, "b", query="?replica=b")
        client = FeedClient(a)
        events = await client.until(lambda events: any(e.data.get("state") == "lost" for e in events))
        assert "status 503" in events[-1].data["why"]


async def test_what_readers_write_counts_in_how_often_they_are_woken() -> None:
    async with open_peers("a", "b") as (_, (a, b)):
        whole = a.app.state.server.fleet.feed
        client = await reader(a, "a", "b")
        learned: list[int] = []

        def learn(_began: float, loop: asyncio.AbstractEventLoop) -> None:
            loop.call_soon(lambda: learned.append(len(client.events)))

        whole._pace.learn = learn
        n_before = len(client.events)
        await complete(b, "r")
        await client.ended("r")
        assert learned
        assert learned[0] > n_before


async def test_where_no_other_feed_can_be_read_none_is_by_a_name() -> None:
    async with open_fleet("a", "b") as (_, (a, _b)), open_world() as alone:
        for world in (a, alone):
            answer = await world.get("/v1/events?replica=b")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "unknown_replica")
        client = FeedClient(a)
        assert "replica" not in await client.began()
