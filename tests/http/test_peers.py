"""Peers over HTTP: who is let in, who is taken for one, and what one that hangs, lies or comes back costs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pyllmcancel import __version__
from pyllmcancel.requests.holds import LONGEST_PREPARATION
from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.addresses import Address, FleetSettings
from pyllmcancel.server.fleet.discovery import Named, Place
from pyllmcancel.server.fleet.endpoint import MAX_BODY, PeerEndpoint
from pyllmcancel.server.fleet.http_transport import HttpTransport
from pyllmcancel.server.fleet.identity import Identity
from pyllmcancel.server.fleet.messages import AskResponse, ListRequests, News
from pyllmcancel.server.fleet.outbox import DROPPED_AT_ONCE, MAX_KEYS, Outbox
from pyllmcancel.server.fleet.peer import Standing
from pyllmcancel.server.fleet.peer_client import MAX_VALUES, NoAnswer, answer_in
from tests.support.http_asgi import LIMIT
from tests.support.http_world import open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pyllmcancel.server.fleet.messages import Superseding
    from pyllmcancel.server.fleet.transport import Answer

pytestmark = pytest.mark.anyio

MODEL = "fake-model (0 parameters, 1,048,576 bytes)"
SETTINGS = FleetSettings(peers=(Address("http", "b", 1),), name="a", key="secret")
KEY = {"x-peer-key": "secret"}
ASK = ListRequests(owner=None)


def identity(name: str, **changes: Any) -> Identity:
    fields = {"nonce": name * 16, "name": name, "version": __version__, "model": MODEL, "clock_us": 0}
    return Identity(**(fields | changes))


def envelope(message: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {"sender": identity(**({"name": "b"} | changes)).model_dump(), "message": message}


# -- the endpoint -----------------------------------------------------------------------------------------------------


async def test_a_peer_is_greeted_and_asked_beside_api_keys() -> None:
    async with open_world(fleet=SETTINGS, api_keys=(ApiKey("ann", "ann's"),), replica="one") as world:
        answer = await world.post("/v1/peers", envelope(), headers=KEY)
        assert (answer.status, answer.json()["reply"], answer.json()["sender"]["name"]) == (200, None, "a")
        assert answer.headers["x-served-by"] == "one"
        answer = await world.post("/v1/peers", envelope(ASK.model_dump()), headers=KEY)
        assert (answer.status, answer.json()["reply"]) == (200, {"data": []})


@pytest.mark.parametrize(
    ("method", "body", "headers", "status", "code"),
    [
        ("POST", envelope(), {}, 401, "invalid_peer_key"),
        ("POST", envelope(), {"x-peer-key": "secreT"}, 401, "invalid_peer_key"),
        ("POST", envelope(), {"authorization": "Bearer secret"}, 401, "invalid_peer_key"),
        ("GET", None, KEY, 405, "method_not_allowed"),
        ("POST", envelope(), KEY | {"origin": "http://elsewhere"}, 403, "no_pages"),
        ("POST", b"{", KEY, 400, "invalid_json"),
        ("POST", b"[" * 200, KEY, 400, "invalid_json"),
        ("POST", {}, KEY, 400, "invalid_request"),
        ("POST", envelope({"kind": "dance"}), KEY, 400, "invalid_request"),
        ("POST", envelope({"kind": "cancel", "owner": "", "ids": [], "wait": True}), KEY, 400, "invalid_request"),
        ("POST", envelope({"kind": "list_requests", "owner": "", "more": 1}), KEY, 400, "unsupported_field"),
        ("POST", envelope(ASK.model_dump(), version="0.0.1"), KEY, 409, "peer_differs"),
        ("POST", envelope(ASK.model_dump(), model="another"), KEY, 409, "peer_differs"),
        ("POST", envelope(ASK.model_dump(), name="a"), KEY, 409, "peer_differs"),
        ("POST", b" " * (MAX_BODY + 1), KEY, 413, "body_too_large"),
    ],
)
async def test_what_is_no_message_of_a_peer_gets_an_error_in_the_shape_of_the_api(
    method: str, body: Any, headers: dict[str, str], status: int, code: str
) -> None:
    async with open_world(fleet=SETTINGS) as world:
        answer = await world.begin(method, "/v1/peers", body, headers=headers).end()
        assert (answer.status, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers["x-request-id"]


async def test_bodies_that_are_being_read_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.server.fleet.endpoint.MAX_BODIES", 100)
    fleet: Any = None  # no message is acted on
    endpoint, rest_comes = PeerEndpoint(fleet, fleet, lambda: identity("a"), None), asyncio.Event()
    pieces = iter((80, 0))

    async def slowly() -> dict[str, Any]:
        size = next(pieces)
        if not size:
            await rest_comes.wait()
        return {"type": "http.request", "body": b"x" * size, "more_body": size > 0}

    async def at_once() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 80, "more_body": False}

    first = asyncio.create_task(endpoint._body_of(slowly))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="too many messages") as refused:
        await endpoint._body_of(at_once)
    assert refused.value.status == 429
    rest_comes.set()
    assert len(await first) == len(await endpoint._body_of(at_once)) == 80


async def test_a_server_without_peers_has_no_door_and_the_page_describes_none() -> None:
    async with open_world() as world:
        assert (await world.post("/v1/peers", envelope(), headers=KEY)).status == 404
    async with open_world(fleet=SETTINGS) as world:
        assert "/v1/peers" not in world.app.openapi()["paths"]


# -- the transport ----------------------------------------------------------------------------------------------------


class Others:
    """Servers, by their hosts; each says what a test makes it say. `messages` are what they were sent."""

    def __init__(self) -> None:
        self.say: dict[str, Callable[[], Awaitable[httpx.Response]]] = {}
        self.messages: list[dict[str, Any]] = []
        self.seen = asyncio.Condition()

    def are(self, host: str, **changes: Any) -> None:
        """From now on `host` is a server of this identity."""
        sender = identity(**({"name": host} | changes)).model_dump()

        async def say() -> httpx.Response:
            return httpx.Response(200, json={"sender": sender, "reply": {"data": []}})

        self.say[host] = say

    def fail(self, host: str, status: int = 0, content: bytes = b"") -> None:
        async def say() -> httpx.Response:
            if not status:
                raise httpx.ConnectError("nobody is there")
            return httpx.Response(status, content=content)

        self.say[host] = say

    def hang(self, host: str) -> None:
        async def say() -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

        self.say[host] = say

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self.say[request.url.host]()
        finally:
            async with self.seen:
                self.messages.append({"to": request.url.host} | json.loads(request.content))
                self.seen.notify_all()

    async def until(self, accept: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT), self.seen:
            await self.seen.wait_for(accept)


@asynccontextmanager
async def transport(others: Others, *hosts: str) -> AsyncIterator[HttpTransport]:
    """One that has greeted all of these."""
    settings = FleetSettings(peers=tuple(Address("http", host, 1) for host in hosts), name="a", key="secret")
    carrier = httpx.MockTransport(others)
    made = HttpTransport(Named(settings, LIMIT), lambda: identity("a"), deadline=LIMIT, carrier=carrier)
    made.start(lambda _: None)
    made.start(lambda _: None)
    try:
        await others.until(lambda: {one["to"] for one in others.messages} >= set(hosts))
        await asyncio.gather(*(line.peer.met.wait() for line in made._lines.values()))
        yield made
    finally:
        await made.close()
        await made.close()


def at(host: str) -> Place:
    return Place(Address("http", host, 1), "secret")


def told(answers: list[Answer]) -> dict[str, str | None]:
    return {answer.replica: answer.error for answer in answers}


async def test_it_asks_all_but_itself() -> None:
    others = Others()
    others.are("b")
    others.are("me", name="a")
    others.are("c")
    async with transport(others, "b", "me", "c") as made:
        assert told(await made.ask_all(ASK)) == {"b": None, "c": None}
        asked = [one for one in others.messages if one["message"] is not None]
        assert sorted((one["to"], one["message"]["kind"]) for one in asked) == [
            ("b", "list_requests"),
            ("c", "list_requests"),
        ]


async def test_peers_of_a_name_are_looked_for_and_those_that_are_gone_are_forgotten() -> None:
    others = Others()
    others.are("127.0.0.1", name="b")
    settings = FleetSettings(peers=(Address("dns", "127.0.0.1", 1),), name="a")
    made = HttpTransport(Named(settings, LIMIT), lambda: identity("a"), carrier=httpx.MockTransport(others))
    made.start(lambda _: None)
    await others.until(lambda: others.messages)
    (line,) = made._lines.values()
    await line.peer.met.wait()
    assert told(await made.ask_all(ASK)) == {"b": None}
    await made._keep(set())
    assert told(await made.ask_all(ASK)) == {"b": None}, "it answers, so it may be draining"
    others.fail("127.0.0.1")
    assert list(told(await made.ask_all(ASK))) == ["b"]
    await made._keep(set())
    assert await made.ask_all(ASK) == []
    await made.close()


async def test_peers_are_looked_for_again_after_what_nobody_foresaw(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyllmcancel.server.fleet.http_transport.SEEK_AGAIN", 0.001)
    others, n_failed = Others(), 0
    others.are("b")

    async def seek() -> AsyncIterator[set[Place]]:
        nonlocal n_failed
        if not n_failed:
            n_failed += 1
            raise KeyError("unforeseen")
        yield {at("b")}

    made = HttpTransport(seek, lambda: identity("a"), carrier=httpx.MockTransport(others))
    made.start(lambda _: None)
    await others.until(lambda: others.messages)
    assert "the discovery of peers failed" in caplog.text
    await made.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": "0.0.1"}, f"is version 0.0.1, not {__version__}"),
        ({"model": "another (1 parameters, 1 bytes)"}, f"serves another (1 parameters, 1 bytes), not {MODEL}"),
        ({"name": "a", "nonce": "x" * 16}, "is called a, as this server is: --replica gives another name"),
    ],
)
async def test_one_that_is_another_server_is_left_out_and_named_and_told_once(
    changes: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    others = Others()
    others.are("b", **changes)
    async with transport(others, "b") as made:
        for _ in range(2):
            assert list(told(await made.ask_all(ASK)).values()) == [why]
        made.tell_all(news(1))
        # A greeting comes from time to time.
        assert [one for one in others.messages if one["message"] is not None] == []
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines == [f"the peer http://b:1 {why}: it is left out"]


async def test_of_two_of_one_name_the_second_is_left_out() -> None:
    others = Others()
    others.are("b")
    async with transport(others, "b") as made:
        others.are("c", name="b", nonce="y" * 16)
        made._use({at("b"), at("c")})
        await made._lines[at("c")].peer.met.wait()
        whys = [answer.error for answer in await made.ask_all(ASK)]
        assert whys == [None, "is called b, as http://b:1 is: --replica gives another name"]


async def test_a_peer_that_returns_at_a_new_address_loses_nothing_and_is_there_when_the_old_one_is_missed() -> None:
    others = Others()
    others.are("old", name="b")
    async with transport(others, "old") as made:
        old = made._lines[at("old")].peer
        old._deadline = 0.05
        others.hang("old")
        others.are("new", name="b", nonce="y" * 16)
        made._use({at("new")})
        new = made._lines[at("new")].peer
        await new.met.wait()
        assert new.standing is Standing.SILENT
        made.tell_all(news(1))
        async with asyncio.timeout(LIMIT):
            await old.until(there=False)
            new.look_now()
            await others.until(
                lambda: any(one["to"] == "new" and one["message"] is not None for one in others.messages)
            )
        assert new.standing is Standing.READY


async def test_two_of_one_name_are_told_when_the_first_has_answered_again(caplog: pytest.LogCaptureFixture) -> None:
    others = Others()
    others.are("b")
    async with transport(others, "b") as made:
        others.are("c", name="b", nonce="y" * 16)
        made._use({at("c")})
        second = made._lines[at("c")].peer
        await second.met.wait()
        assert second.standing is Standing.SILENT
        await others.until(lambda: [one["to"] for one in others.messages].count("b") == 2)  # it was looked at
        second.look_now()
        async with asyncio.timeout(LIMIT):
            while second.standing is not Standing.REFUSED:  # noqa: ASYNC110 - it is looked at when it likes
                await asyncio.sleep(0)
    assert (
        "the peer http://c:1 is called b, as http://b:1 is: --replica gives another name: it is left out" in caplog.text
    )


async def test_a_server_with_two_addresses_is_asked_once() -> None:
    others = Others()
    others.are("b")
    async with transport(others, "b") as made:
        others.are("c", name="b", nonce="b" * 16)
        made._use({at("c")})
        await made._lines[at("c")].peer.met.wait()
        assert told(await made.ask_all(ASK)) == {"b": None}


async def test_one_that_is_loading_has_nothing_and_is_not_missed() -> None:
    others = Others()
    others.are("b", model=None)
    async with transport(others, "b") as made:
        assert await made.ask_all(ASK) == []


async def test_one_that_has_loaded_since_it_was_greeted_is_asked() -> None:
    others = Others()
    others.are("b", model=None)
    async with transport(others, "b") as made:
        others.are("b")
        assert told(await made.ask_all(ASK)) == {"b": None}


async def test_one_that_was_loading_and_does_not_answer_is_missed() -> None:
    others = Others()
    others.are("b", model=None)
    async with transport(others, "b") as made:
        others.fail("b")
        assert told(await made.ask_all(ASK)) == {"b": "does not answer (ConnectError)"}


async def test_one_that_hangs_is_waited_for_once_and_asked_again_when_it_answers() -> None:
    others = Others()
    others.are("b")
    async with transport(others, "b") as made:
        peer = made._lines[at("b")].peer
        peer._deadline = 0.05
        others.hang("b")
        assert told(await made.ask_all(ASK)) == {"b": "does not answer in 0.05 s"}
        assert told(await made.ask_all(ASK)) == {"b": "does not answer in 0.05 s"}
        assert len([one for one in others.messages if one["message"] is not None]) == 1
        others.are("b", nonce="z" * 16)  # it was started again
        peer._deadline = LIMIT
        async with asyncio.timeout(LIMIT):
            while told(await made.ask_all(ASK)) != {"b": None}:
                peer.met.clear()
                peer.look_now()
                await peer.met.wait()


@pytest.mark.parametrize(
    ("status", "content", "why"),
    [
        (0, b"", "does not answer (ConnectError)"),
        (200, b"hello", "gave an invalid answer"),
        (200, b'{"sender": {}}', "gave an invalid answer"),
        (500, b"\xff\n", r"answered with status 500: '\ufffd\n'"),
        (401, b"no", "answered with status 401: 'no'"),
    ],
)
async def test_one_that_lies_or_fails_is_not_reached(status: int, content: bytes, why: str) -> None:
    others = Others()
    others.fail("b", status, content)
    others.are("c")
    async with transport(others, "b", "c") as made:
        assert told(await made.ask_all(ASK)) == {"b:1": why, "c": None}


async def test_one_that_declines_a_message_is_still_there() -> None:
    others = Others()
    others.are("b")
    async with transport(others, "b") as made:
        others.fail("b", 429, b"too many ids are held")
        assert told(await made.ask_all(ASK)) == {"b": "answered with status 429: 'too many ids are held'"}
        others.are("b")
        assert told(await made.ask_all(ASK)) == {"b": None}


@pytest.mark.parametrize("case", ["late", "long", "values", "status"])
async def test_one_whose_answer_about_a_response_is_too_much_is_still_there(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others()
    others.are("b")
    async with transport(others, "b") as made:
        peer = made._lines[at("b")].peer
        match case:
            case "late":
                peer._deadline = 0.05
                others.hang("b")
            case "long":
                monkeypatch.setattr("pyllmcancel.server.fleet.peer_client.MAX_BYTES", 2)
                others.fail("b", 200, b"long")
            case "values":
                others.fail("b", 200, b"[" + b"1," * MAX_VALUES + b"1]")
            case _:
                others.fail("b", 500, b"no")
        answer = await peer._ask(AskResponse(owner="ann", id="resp_1", asked="history"))
        assert answer.error is not None
        assert peer.standing is Standing.READY
        answer = await peer._ask(ASK)
        assert answer.error is not None
        assert peer.standing is Standing.SILENT  # what no client can make so long or late


async def test_what_happens_while_one_is_loading_is_told_when_it_is_there() -> None:
    others = Others()
    others.are("b", model=None)
    async with transport(others, "b") as made:
        made.tell_all(news(1))
        others.are("b")
        made._lines[at("b")].peer.look_now()
        await others.until(lambda: any(one["message"] is not None for one in others.messages))


async def test_a_name_that_cannot_be_one_of_a_host_ends_nothing() -> None:
    others = Others()
    others.are("127.0.0.1", name="b")
    peers = (Address("dns", "a..b", 1), Address("dns", "127.0.0.1", 1))
    named = Named(FleetSettings(peers=peers, name="a"), LIMIT)
    made = HttpTransport(named, lambda: identity("a"), carrier=httpx.MockTransport(others))
    made.start(lambda _: None)
    await others.until(lambda: others.messages)
    await made.close()


async def test_one_that_was_never_reached_has_a_name_that_a_header_can_carry() -> None:
    others = Others()
    others.fail("日本")
    async with transport(others, "日本") as made:
        assert list(told(await made.ask_all(ASK))) == ["--:1"]


async def test_a_clock_that_is_no_time_makes_no_sense() -> None:
    others = Others()
    sender = identity("b").model_dump() | {"clock_us": 10**400}
    others.fail("b", 200, json.dumps({"sender": sender}).encode())
    async with transport(others, "b") as made:
        assert told(await made.ask_all(ASK)) == {"b:1": "gave an invalid answer"}


@pytest.mark.parametrize("form", ["wide", "deep"])
async def test_an_answer_of_too_many_values_is_not_parsed(form: str) -> None:
    content = b"[" + b"1," * MAX_VALUES + b"1]" if form == "wide" else b'{"sender": ' + b"[" * 200
    with pytest.raises(NoAnswer, match=f"answered more than {MAX_VALUES:,} values, or values nested too deep"):
        answer_in(content)


async def test_a_clock_that_is_set_wrongly_is_told(caplog: pytest.LogCaptureFixture) -> None:
    others = Others()
    others.are("b")  # in 1970
    async with transport(others, "b"):
        assert any("the clock of b is" in record.getMessage() for record in caplog.records)


# -- news -------------------------------------------------------------------------------------------------------------


def news(number: int, key: str = "k", owner: str = "") -> News:
    return News(owner=owner, key=key, arrived_us=number, id=f"r{number}")


class Slow:
    """Takes messages, and answers when a test says so."""

    def __init__(self) -> None:
        self.messages: list[Superseding] = []
        self.answers: asyncio.Queue[bool] = asyncio.Queue()
        self.came = asyncio.Condition()

    async def __call__(self, message: Superseding) -> bool:
        async with self.came:
            self.messages.append(message)
            self.came.notify_all()
        return await self.answers.get()

    async def until(self, n: int) -> list[list[str]]:
        """Wait for so many messages; the ids in each."""
        async with asyncio.timeout(LIMIT), self.came:
            await self.came.wait_for(lambda: len(self.messages) >= n)
        return [[one.id for one in message.news] for message in self.messages]


async def test_of_a_storm_the_newest_of_each_key_is_sent_and_one_message_at_a_time() -> None:
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(0))
    await slow.until(1)
    for number in (1, 3, 2):
        outbox.put(news(number))
        outbox.put(news(number + 10, key="l"))
        outbox.put(news(number + 20, owner="ann"))
    assert len(outbox) == 3
    slow.answers.put_nowait(True)
    assert await slow.until(2) == [["r0"], ["r3", "r13", "r23"]]
    await outbox.close()


async def test_what_did_not_arrive_is_sent_again_unless_something_newer_has_come() -> None:
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(1))
    outbox.put(news(2, key="l"))
    await slow.until(1)
    outbox.put(news(3))
    slow.answers.put_nowait(False)
    assert (await slow.until(2))[1] == ["r3", "r2"]
    await outbox.close()


async def test_what_did_not_arrive_goes_before_what_has_come_since() -> None:
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(1))
    outbox.put(news(2, key="l"))
    await slow.until(1)
    outbox.put(news(3, key="m"))
    slow.answers.put_nowait(False)
    assert (await slow.until(2))[1] == ["r1", "r2", "r3"]
    await outbox.close()


async def test_what_is_sent_again_is_not_what_something_older_has_replaced() -> None:
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(2))
    await slow.until(1)
    outbox.put(news(1))  # it was prepared for longer
    slow.answers.put_nowait(False)
    assert (await slow.until(2))[1] == ["r2"]
    await outbox.close()


async def test_an_outbox_outlives_what_nobody_foresaw(caplog: pytest.LogCaptureFixture) -> None:
    slow, n_failed = Slow(), 0

    async def fail_once(message: Superseding) -> bool:
        nonlocal n_failed
        if not n_failed:
            n_failed += 1
            raise KeyError("unforeseen")
        return await slow(message)

    outbox = Outbox("b", fail_once)
    outbox.put(news(1))
    assert await slow.until(1) == [["r1"]]
    assert "news for b could not be sent" in caplog.text
    await outbox.close()


async def test_what_is_newer_is_not_too_old_because_of_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("pyllmcancel.server.fleet.outbox.time", SimpleNamespace(monotonic=lambda: now))
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(0))
    await slow.until(1)
    outbox.put(news(1))
    now = LONGEST_PREPARATION - 1.0
    outbox.put(news(2))
    now = LONGEST_PREPARATION + 1.0
    slow.answers.put_nowait(True)
    assert await slow.until(2) == [["r0"], ["r2"]]
    await outbox.close()


async def test_an_outbox_holds_a_bounded_number_of_keys_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(0))
    await slow.until(1)
    for number in range(MAX_KEYS + 10):
        outbox.put(news(number, key=str(number)))
    assert MAX_KEYS - DROPPED_AT_ONCE < len(outbox) <= MAX_KEYS
    assert [record.getMessage() for record in caplog.records] == [
        f"b takes news too slowly: the oldest of {MAX_KEYS} are dropped"
    ]
    await outbox.close()


async def test_news_of_one_owner_do_not_push_out_anothers() -> None:
    slow = Slow()
    outbox = Outbox("b", slow)
    outbox.put(news(0))
    await slow.until(1)
    outbox.put(news(1, key="bob's", owner="bob"))
    for number in range(2 * MAX_KEYS):
        outbox.put(news(number, key=str(number), owner="ann"))
    assert ("bob", "bob's") in outbox._waiting
    await outbox.close()
