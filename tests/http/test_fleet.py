"""Replicas that know each other: a client of any of them gets what a single server would have done."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.holds import MAX_HOLDS
from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.messages import MAX_KNOWN, CancelFamilies, Message, News, Superseding
from pyllmcancel.server.fleet.transport import Answer
from tests.support.fleet import open_fleet
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

pytestmark = pytest.mark.anyio

KEYS = (ApiKey("ann", "ann's"), ApiKey("bob", "bob's"))
ANN, BOB, ROOT = ({"authorization": f"Bearer {key}"} for key in ("ann's", "bob's", "root"))
NOTHING: dict[str, Any] = {"requests": []}
OWNED = {"api_keys": KEYS, "admin_api_keys": ("root",)}


async def begun(world: World, name: str, who: dict[str, str] | None = None, **fields: Any) -> Exchange:
    """A completion that goes on until it is cancelled; its names are in its body."""
    world.hold()
    headers = {"x-request-id": name} | (who or {})
    exchange = world.complete(name, headers=headers, **({"max_tokens": 100, "ignore_eos": True} | fields))
    await world.added(name)
    return exchange


async def code_of(exchange: Exchange) -> str:
    answer = (await exchange.end()).json()
    code: str = answer["error"]["code"]
    return code


async def post(world: World, path: str, body: Any = None, **options: Any) -> tuple[int, dict[str, Any]]:
    exchange = await world.post(path, body, **options)
    return exchange.status, exchange.json()


# -- superseding ------------------------------------------------------------------------------------------------------


async def test_a_newer_request_supersedes_the_older_one_on_another_replica() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        older = await begun(a, "older", supersede="k")
        newer = await begun(b, "newer", supersede="k")
        await net.deliver(2)
        assert await code_of(older) == "superseded"
        assert (await a.request("older"))["superseded_by"] == "newer"
        assert (await b.request("newer"))["cancel_reason"] is None
        assert newer.status == 0


async def test_one_that_hears_of_a_newer_one_in_the_answer_gives_way() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        older = await begun(a, "older", supersede="k")
        await begun(b, "newer", supersede="k")
        await net.deliver(1)  # of the older one
        assert await code_of(older) == "superseded"


async def test_requests_of_other_keys_owners_or_none_are_not_superseded() -> None:
    async with open_fleet("a", "b", **OWNED, parallel=4) as (net, (a, b)):
        await begun(a, "mine", ANN, supersede="k")
        await begun(a, "other-key", ANN, supersede="l")
        await begun(a, "none", ANN)
        await begun(b, "his", BOB, supersede="k")
        await net.deliver(3)
        assert [one.cancellation.requested for one in a.engine.registry.requests()] == [False] * 3
        assert net.news.empty()


async def test_a_request_that_is_in_preparation_gives_way_to_a_newer_one_elsewhere() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        # Its body has not come yet, so nothing is known of it but when it arrived.
        older = a.begin("POST", "/v1/completions", content=None, headers={"x-request-id": "older"})
        await begun(b, "newer", supersede="k")
        await net.deliver()
        older.body_arrives(b'{"prompt": "x", "supersede": "k"}')
        assert await code_of(older) == "superseded"
        assert (await a.request("older"))["superseded_by"] == "newer"
        assert net.news.empty()


async def test_one_that_claims_to_come_in_the_future_ends_nothing() -> None:
    async with open_fleet("a") as (net, (a,)):
        await begun(a, "r", supersede="k")
        future = News(owner="", key="k", arrived_us=time.time_ns() // 1000 + 60_000_000, id="liar")
        assert await net.fleets["a"].receive(Superseding(news=[future]).model_dump(mode="json")) == {"newer": []}
        net.heard["a"]([Answer("b", {"newer": [future.model_dump()]})])
        await begun(a, "next", supersede="k")
        assert (await a.request("r"))["superseded_by"] == "next"
        assert (await a.request("next"))["cancel_reason"] is None


# -- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/requests/r/cancel"), ("DELETE", "/v1/requests/r")])
async def test_a_request_is_cancelled_by_its_id_on_any_replica(method: str, path: str) -> None:
    async with open_fleet("a", "b", "c") as (_, (a, b, _c)):
        request = await begun(b, "r")
        answer = await a.begin(method, path).end()
        assert (answer.status, answer.json()["outcome"], answer.json()["reason"]) == (200, "cancelled", "explicit")
        assert await code_of(request) == "explicit"


async def test_a_cancel_by_id_reaches_the_same_id_on_every_replica() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        first, again = await begun(a, "r"), await begun(b, "r")  # its client has asked again, and got to another one
        status, answer = await post(a, "/v1/requests/r/cancel")
        assert (status, answer["outcome"]) == (200, "cancelled")
        assert [await code_of(one) for one in (first, again)] == ["explicit"] * 2


async def test_a_live_request_elsewhere_goes_before_one_that_has_ended_here() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await a.complete("x", headers={"x-request-id": "r"}, max_tokens=1).end()
        await begun(b, "r")
        status, answer = await post(a, "/v1/requests/r/cancel")
        assert (status, answer["outcome"]) == (200, "cancelled")
        status, answer = await post(a, "/v1/requests/r/cancel")
        assert (status, answer["outcome"]) == (200, "already_finished")


async def test_ids_of_all_replicas_are_cancelled_by_one_body_in_its_order() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await begun(a, "1")
        await begun(b, "2")
        status, answer = await post(a, "/v1/requests/cancel", {"request_ids": ["2", "nobody's", "1"]})
        outcomes = [(one["id"], one["outcome"]) for one in answer["data"]]
        assert (status, outcomes) == (200, [("2", "cancelled"), ("nobody's", "unknown"), ("1", "cancelled")])


async def test_a_filter_reaches_all_replicas() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await begun(a, "1", session_id="s")
        await begun(b, "2", session_id="s")
        spared = await begun(b, "3")
        _, answer = await post(a, "/v1/requests/cancel?wait=false", {"session": "s"})
        assert {one["id"] for one in answer["data"]} == {"1", "2"}
        b.gate.open()
        await spared.end()
        assert spared.status == 200


async def test_an_id_that_nobody_knows_is_unknown_or_held_everywhere() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        status, answer = await post(a, "/v1/requests/r/cancel")
        assert (status, answer["error"]["code"]) == (404, "unknown_request")
        status, answer = await post(a, "/v1/requests/r/cancel?hold=30")
        assert (status, answer["outcome"]) == (202, "held")
        assert await code_of(b.complete("x", headers={"x-request-id": "r"})) == "explicit"


async def test_what_is_found_somewhere_is_held_nowhere() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await begun(b, "r")
        status, answer = await post(a, "/v1/requests/r/cancel?hold=30")
        assert (status, answer["outcome"]) == (200, "cancelled")
        assert (await a.complete("x", headers={"x-request-id": "r"}, max_tokens=1).end()).status == 200


async def test_a_family_is_cancelled_though_no_replica_knows_all_of_it() -> None:
    async with open_fleet("a", "b", "c") as (_, (a, b, c)):
        await begun(a, "mother", session_id="1")
        await begun(b, "daughter", session_id="2", parent_session_id="1")
        await begun(c, "granddaughter", session_id="3", parent_session_id="2")
        stranger = await begun(c, "stranger", session_id="4")
        status, answer = await post(a, "/v1/sessions/1/cancel?wait=false")
        assert status == 200
        assert {one["id"] for one in answer["requests"]} == {"mother", "daughter", "granddaughter"}
        assert {one["outcome"] for one in answer["requests"]} == {"cancelled"}
        c.gate.open()
        await stranger.end()
        assert stranger.status == 200


async def test_without_descendants_a_session_alone_is_cancelled() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await begun(b, "mother", session_id="1")
        await begun(b, "daughter", session_id="2", parent_session_id="1")
        _, answer = await post(a, "/v1/sessions/1/cancel?descendants=false&wait=false")
        assert [one["id"] for one in answer["requests"]] == ["mother"]


async def test_a_session_that_is_cancelled_reaches_what_has_arrived_elsewhere_and_is_not_listed_yet() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        late = b.begin("POST", "/v1/completions", content=None, headers={"x-request-id": "late"})
        await begun(a, "first", session_id="s")
        await post(a, "/v1/sessions/s/cancel")
        late.body_arrives(b'{"prompt": "x", "session_id": "s"}')
        assert await code_of(late) == "explicit"
        assert (await b.complete("x", session_id="s", max_tokens=1).end()).status == 200


async def test_a_session_is_held_on_all_replicas() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        status, answer = await post(a, "/v1/sessions/s/cancel")
        assert (status, answer["error"]["code"]) == (404, "unknown_session")
        status, answer = await post(a, "/v1/sessions/s/cancel?hold=30")
        assert (status, answer["hold_seconds"]) == (202, 30)
        assert await code_of(b.complete("x", session_id="child", parent_session_id="s")) == "explicit"


async def test_a_family_of_more_names_than_can_be_held_is_refused_before_anything_is_cancelled() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        request = await begun(a, "r", session_id="s")
        there = await begun(b, "there", session_id="s")
        names = [f"child-{i}" for i in range(MAX_HOLDS)]

        class Large:
            async def receive(self, said: Any) -> Any:
                return {"sessions": names} if said["kind"] == "name_families" else await fleet.receive(said)

        fleet, net.fleets["b"] = net.fleets["b"], Large()  # type: ignore[assignment]
        status, answer = await post(a, "/v1/sessions/s/cancel?hold=30&wait=false")
        assert (status, answer["error"]["message"]) == (429, "too many ids are held for cancellation")
        assert [one.cancellation.requested for w in (a, b) for one in w.engine.registry.requests()] == [False] * 2
        status, answer = await post(a, "/v1/sessions/s/cancel?hold=30&wait=false&descendants=false")
        assert (status, {one["id"] for one in answer["requests"]}) == (200, {"r", "there"})
        assert [await code_of(one) for one in (request, there)] == ["explicit"] * 2


async def test_a_replica_without_room_to_hold_a_session_cancels_none_of_it_and_is_named() -> None:
    async with open_fleet("a") as (net, (a,)):
        await begun(a, "r", session_id="1")
        holds = CancelFamilies(owner="", sessions=["1"], descendants=True, wait=False, hold=30.0)
        several = holds.model_copy(update={"sessions": ["1", *(f"held-{i}" for i in range(MAX_HOLDS - 1))]})
        a.engine.registry.find("one", 30.0)
        (running,) = a.engine.registry.requests()
        with pytest.raises(QueueFullError):
            await net.fleets["a"].receive(several.model_dump(mode="json"))
        assert not running.cancellation.requested
        await net.fleets["a"].receive(holds.model_dump(mode="json"))
        assert running.cancellation.requested


# -- owners -----------------------------------------------------------------------------------------------------------


async def test_owners_do_not_meet_on_other_replicas_either() -> None:
    async with open_fleet("a", "b", **OWNED) as (_, (a, b)):
        await begun(b, "r", ANN, session_id="s")
        for path in ("/v1/requests/r/cancel", "/v1/sessions/s/cancel"):
            assert (await post(a, path, headers=BOB))[0] == 404
        assert (await a.get("/v1/requests", headers=BOB)).json()["data"] == []
        assert (await a.get("/v1/sessions", headers=BOB)).json()["data"] == []
        assert not b.engine.registry.requests()[0].cancellation.requested


async def test_an_administrator_cancels_what_is_anybodys_and_says_whose_where_that_is_not_clear() -> None:
    async with open_fleet("a", "b", **OWNED) as (_, (a, b)):
        await begun(a, "both", ANN)
        await begun(b, "both", BOB)
        await begun(b, "one", BOB, session_id="s")
        status, answer = await post(a, "/v1/requests/both/cancel", headers=ROOT)
        assert (status, answer["error"]["code"]) == (409, "ambiguous")
        assert (await post(a, "/v1/requests/both/cancel?owner=bob&wait=false", headers=ROOT))[0] == 200
        assert (await post(a, "/v1/sessions/s/cancel?wait=false", headers=ROOT))[0] == 200
        listed = (await a.get("/v1/requests", headers=ROOT)).json()["data"]
        assert {(one["owner"], one["id"], one["cancel_reason"]) for one in listed} >= {
            ("bob", "both", "explicit"),
            ("bob", "one", "explicit"),
        }


# -- lists ------------------------------------------------------------------------------------------------------------


async def test_lists_are_those_of_all_replicas_and_say_which() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await begun(a, "1", session_id="s")
        await begun(b, "2", session_id="s", parent_session_id="p")
        for world in (a, b):
            await world.held()  # accepted is not running yet
        listed = await a.requests()
        assert [(one["id"], one["replica"]) for one in listed] == [("1", "a"), ("2", "b")]
        assert [one["id"] for one in await b.requests("?session=s&status=running")] == ["1", "2"]
        assert (await a.request("2"))["replica"] == "b"
        sessions = {one["id"]: one for one in (await a.get("/v1/sessions")).json()["data"]}
        assert sessions.keys() == {"s", "p"}
        assert (sessions["s"]["requests"], sessions["s"]["parent"]) == (["1", "2"], "p")
        assert (sessions["s"]["n_requests"], sessions["s"]["replicas"]) == (2, ["a", "b"])
        assert (await a.get("/v1/sessions/p")).json()["children"] == ["s"]
        assert (await a.get("/v1/sessions/nobody's")).status == 404
        assert (await a.get("/v1/requests/nobody's")).status == 404


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/sessions"])
async def test_a_replica_that_does_not_answer_is_named(path: str) -> None:
    async with open_fleet("a", "b", "c") as (net, (a, _b, _c)):
        net.silent = {"b"}
        answer = await a.get(path)
        assert answer.headers["x-unreached"] == "b"
        assert answer.json()["unreached"] == [{"replica": "b", "why": "does not answer"}]
        net.silent = set()
        answer = await a.get(path)
        assert "x-unreached" not in answer.headers
        assert "unreached" not in answer.json()


async def test_a_cancel_that_found_nothing_says_who_was_not_asked() -> None:
    async with open_fleet("a", "b") as (net, (a, _b)):
        net.silent = {"b"}
        answer = await a.post("/v1/requests/r/cancel")
        assert (answer.status, answer.headers["x-unreached"]) == (404, "b")


async def test_a_replica_that_answers_nonsense_counts_as_not_reached() -> None:
    async with open_fleet("a", "b") as (net, (a, _b)):

        class Liar:
            async def receive(self, said: Any) -> dict[str, Any]:
                return {"data": [{"id": 5}], "newer": "yes"}

        net.fleets["b"] = Liar()  # type: ignore[assignment]
        answer = await a.get("/v1/requests")
        assert answer.json() == {
            "object": "list",
            "data": [],
            "unreached": [{"replica": "b", "why": "gave an invalid answer"}],
        }
        await begun(a, "r", supersede="k")
        await net.deliver()
        assert not a.engine.registry.requests()[0].cancellation.requested


async def test_a_replica_that_makes_up_ever_more_sessions_is_not_followed_for_ever() -> None:
    async with open_fleet("a", "b") as (net, (a, _b)):

        class Liar:
            n_asked = 0

            async def receive(self, said: Any) -> dict[str, Any]:
                self.n_asked += 1
                return {"sessions": [f"child-{self.n_asked}"]} | ({} if said["kind"] == "name_families" else NOTHING)

        net.fleets["b"] = Liar()  # type: ignore[assignment]
        await begun(a, "r", session_id="s")
        status, answer = await post(a, "/v1/sessions/s/cancel")
        assert (status, [one["id"] for one in answer["requests"]]) == (200, ["r"])


async def test_without_peers_entries_name_no_replica() -> None:
    async with open_fleet("a") as (_, (a,)):
        a.app.state.server.fleet = None
        await begun(a, "1", session_id="s")
        assert "replica" not in (await a.requests())[0]
        assert "replicas" not in (await a.get("/v1/sessions/s")).json()


class Liar:
    """A transport to a replica that knows ever more sessions, all of one family."""

    def __init__(self) -> None:
        self.n_asked = self.n_made = 0

    async def ask_all(self, _: Message) -> list[Answer]:
        self.n_asked += 1
        self.n_made += MAX_KNOWN
        return [Answer("liar", {"sessions": [f"made-up-{self.n_made - i}" for i in range(MAX_KNOWN)]})]

    def start(self, heard: Any) -> None: ...
    def tell_all(self, news: News) -> None: ...
    async def close(self) -> None: ...


async def test_a_peer_that_makes_sessions_up_finds_an_end() -> None:
    async with open_world() as world:
        state, liar = world.app.state.server, Liar()
        state.fleet = Fleet(state, liar, "a")
        await begun(world, "r", session_id="s")
        status, answer = await post(world, "/v1/sessions/s/cancel")
        assert (status, [one["id"] for one in answer["requests"]]) == (200, ["r"])
        assert liar.n_asked < 20


# -- names that nothing has -------------------------------------------------------------------------------------------

LONG = "x" * 9_000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"/v1/requests?session={LONG}", None),
        ("GET", f"/v1/requests?owner={LONG}", None),
        ("GET", f"/v1/requests/{LONG}", None),
        ("GET", f"/v1/sessions/{LONG}", None),
        ("POST", f"/v1/requests/{LONG}/cancel", None),
        ("POST", f"/v1/sessions/{LONG}/cancel", None),
        ("POST", "/v1/requests/cancel", {"session": LONG}),
        ("POST", "/v1/requests/cancel", {"owner": LONG}),
        ("POST", "/v1/requests/cancel", b'{"session": "\\ud800"}'),
    ],
)
async def test_a_name_that_no_message_has_room_for_is_refused(method: str, path: str, body: Any) -> None:
    async with open_fleet("a", "b", **OWNED) as (_, (a, _b)):
        answer = await a.begin(method, path, body, headers=ROOT).end()
        code = "invalid_json" if isinstance(body, bytes) else "invalid_request"
        assert (answer.status, answer.json()["error"]["code"]) == (400, code)
