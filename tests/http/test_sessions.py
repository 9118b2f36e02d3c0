"""Sessions group, and supersede keys supersede: where they come from, what is listed, and what a cancel reaches."""

import asyncio
import threading
from typing import Any

import pytest

from pyllmcancel.server.limits import INLINE_BODY
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world


def member(world: World, name: str, session: str, parent: str | None = None, **fields: Any) -> Exchange:
    """A completion that goes on until it is cancelled."""
    headers = {"x-request-id": name, "x-session-id": session}
    if parent is not None:
        headers["x-parent-session-id"] = parent
    return world.complete(name, headers=headers, **({"max_tokens": 100, "ignore_eos": True} | fields))


@pytest.mark.parametrize("n", [2, 10])
async def test_all_chats_of_one_session_complete_as_alone(n: int) -> None:
    """A title, a summary, and the turn itself: agents send the session with each of them."""
    async with open_world(parallel=4) as world:

        def chat(number: int) -> Exchange:
            body = {"messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 20}
            headers = {"x-session-id": "conversation"}
            return world.begin("POST", "/v1/chat/completions", body | {"temperature": 0}, headers=headers)

        alone = [(await chat(number).end()).json()["choices"] for number in range(n)]
        together = [chat(number) for number in range(n)]
        assert [(await exchange.end()).json()["choices"] for exchange in together] == alone
        assert (await world.get("/v1/sessions/conversation")).json()["n_requests"] == 2 * n


async def test_a_cancel_ends_all_requests_of_a_session_and_its_descendants_and_no_others() -> None:
    async with open_world(parallel=3) as world:
        world.hold()
        family = [
            member(world, "a1", "root"),
            member(world, "a2", "root"),
            member(world, "b", "child", "root"),
            member(world, "c", "grandchild", "child"),
            member(world, "d", "great-grandchild", "grandchild"),
        ]
        stranger = member(world, "stranger", "another", max_tokens=4)
        await world.added("stranger")
        (only,) = (await world.post("/v1/sessions/child/cancel?descendants=false&wait=false")).json()["requests"]
        assert only["id"] == "b", "descendants can be left out"
        answer = (await world.post("/v1/sessions/root/cancel?wait=false")).json()
        world.gate.open()
        assert {cancelled["id"] for cancelled in answer["requests"]} >= {"a1", "a2", "c", "d"}
        assert {cancelled["outcome"] for cancelled in answer["requests"]} == {"cancelled"}
        assert [(await exchange.end()).status for exchange in family] == [499] * 5
        assert (await stranger.end()).status == 200
        sessions = {entry["id"]: entry for entry in (await world.get("/v1/sessions")).json()["data"]}
        assert sessions["grandchild"]["parent"] == "child"
        assert all(not entry["requests"] for entry in sessions.values())
        assert (await world.get("/v1/sessions?live=true")).json()["data"] == []


async def test_a_cancel_reaches_a_request_being_tokenized(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not accepted yet: a worker reads its long prompt."""
    reading, may_end = threading.Event(), threading.Event()
    tokenize = world.model.tokenize

    def slowly(text: str | bytes, **options: bool) -> list[int]:
        reading.set()
        assert may_end.wait(LIMIT)
        return tokenize(text, **options)

    assert (await member(world, "first", "child", "parent", max_tokens=1).end()).status == 200
    monkeypatch.setattr(world.model, "tokenize", slowly)
    late = member(world, "late", "child", "parent", metadata={"long": "x" * INLINE_BODY})
    assert await asyncio.to_thread(reading.wait, LIMIT)
    (cancelled,) = (await world.post("/v1/sessions/parent/cancel?wait=false")).json()["requests"]
    assert (cancelled["id"], cancelled["phase"]) == ("late", "preparing")
    assert (await late.end()).json()["error"]["code"] == "explicit"
    may_end.set()
    assert (await member(world, "new", "child", "parent", max_tokens=1).end()).status == 200


async def test_a_session_is_listed_with_its_live_requests() -> None:
    async with open_world(parallel=1) as world:
        world.hold()
        member(world, "running", "s")
        member(world, "waiting", "s")
        await world.added("waiting")
        entry = (await world.get("/v1/sessions/s")).json()
        assert (entry["id"], entry["object"], entry["owner"]) == ("s", "session", "")
        assert (entry["requests"], entry["n_requests"]) == (["running", "waiting"], 2)
        assert [one["id"] for one in await world.requests("?session=s")] == ["running", "waiting"]
        assert (await world.get("/v1/sessions/unknown")).status == 404


async def test_a_request_that_is_refused_does_not_cancel_its_keys_live_one(world: World) -> None:
    await world.running_stream("live", supersede="k")
    for prompt, n in (([], 1), ("x", 129), ("x" * 2000, 1), ([999], 1)):
        assert (await world.complete(prompt, supersede="k", n=n).end()).status == 400
    assert (await world.request("live"))["status"] == "running"


async def test_several_are_cancelled_by_their_ids_and_each_is_answered() -> None:
    async with open_world(parallel=1) as world:
        await world.complete(max_tokens=1, headers={"x-request-id": "ended"}).end()
        world.hold()
        live = [member(world, name, "s") for name in ("running", "waiting")]
        await world.added("waiting")
        ids = ["waiting", "unknown", "ended", "running"]
        answer = (await world.post("/v1/requests/cancel?wait=false", {"request_ids": ids})).json()
        world.gate.open()
        assert [(one["id"], one["outcome"]) for one in answer["data"]] == [
            ("waiting", "cancelled"),
            ("unknown", "unknown"),
            ("ended", "already_finished"),
            ("running", "cancelled"),
        ]
        assert [(await exchange.end()).status for exchange in live] == [499, 499]
        held = (await world.post("/v1/requests/cancel?hold=30", {"request_ids": ["later"]})).json()
        assert held["data"] == [{"id": "later", "outcome": "held", "hold_seconds": 30.0}]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"session": "s"}, ["running", "waiting-1"]),
        ({"status": "waiting"}, ["waiting-1", "waiting-2"]),
        ({"status": "running"}, ["running"]),
        ({"session": "s", "status": "waiting"}, ["waiting-1"]),
        ({"session": "unknown"}, []),
        ({"owner": ""}, ["running", "waiting-1", "waiting-2"]),
    ],
)
async def test_several_are_cancelled_by_a_filter(filters: dict[str, str], expected: list[str]) -> None:
    async with open_world(parallel=1) as world:
        world.hold()
        member(world, "running", "s")
        await world.held()
        member(world, "waiting-1", "s")
        await world.added("waiting-1")
        member(world, "waiting-2", "t")
        await world.added("waiting-2")
        answer = (await world.post("/v1/requests/cancel?wait=false", filters)).json()
        assert [one["id"] for one in answer["data"]] == expected


@pytest.mark.parametrize(
    "body", [{}, {"request_ids": []}, {"request_ids": ["a"], "session": "s"}, {"status": "finished"}, {"ids": ["a"]}]
)
async def test_a_cancel_that_does_not_say_which_is_refused(world: World, body: dict[str, Any]) -> None:
    assert (await world.post("/v1/requests/cancel", body)).status == 400


# -- where a request comes from ----------------------------------------------------------------------------------------


TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/completion": {"prompt": "x", "n_predict": 1},
    "/infill": {"input_prefix": "x", "input_suffix": "y", "n_predict": 1},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
}
PROXIES = ("127.0.0.0/8", "10.0.0.0/24")


async def entry_of(
    world: World, fields: dict[str, Any], headers: dict[str, str], path: str = COMPLETIONS, **options: Any
) -> dict[str, Any]:
    await world.served(path, BODIES[path] | fields, headers=headers, **options)
    return (await world.requests())[0]


@pytest.mark.parametrize(
    ("fields", "headers", "expected"),
    [
        ({}, {}, None),
        ({}, {"x-session-id": "h"}, "h"),
        ({}, {"x-session-affinity": "a"}, "a"),
        ({}, {"x-claude-code-session-id": "c"}, "c"),
        ({}, {"x-session-affinity": "a", "x-session-id": "h"}, "h"),
        ({"session_id": "b"}, {}, "b"),
        ({"session_id": "b"}, {"x-session-id": "h"}, "h"),
        ({"session_id": "b", "prompt_cache_key": "p"}, {}, "b"),
        ({"prompt_cache_key": "p"}, {}, "p"),
        ({"user": "u"}, {}, None),
        ({}, {"x-session-id": ""}, None),
        ({}, {"x-session-id": "sch\xc3\xb6n"}, "schön"),
        ({}, {"traceparent": TRACEPARENT}, f"trace:{TRACE}"),
        ({}, {"traceparent": "nonsense"}, None),
        ({}, {"traceparent": TRACEPARENT.replace(TRACE, "0" * 32)}, None),
        ({}, {"traceparent": TRACEPARENT.replace(TRACE, TRACE.upper())}, None),
        ({}, {"traceparent": f"ff{TRACEPARENT[2:]}"}, None),
        ({}, {"traceparent": f"01{TRACEPARENT[2:]}-more"}, f"trace:{TRACE}"),
        ({"session_id": "b"}, {"traceparent": TRACEPARENT}, "b"),
    ],
)
async def test_the_session_of_a_request(
    world: World, fields: dict[str, Any], headers: dict[str, str], expected: str | None
) -> None:
    assert (await entry_of(world, fields, headers))["session"] == expected


@pytest.mark.parametrize(
    ("fields", "headers"),
    [({"parent_session_id": "p", "session_id": "c"}, {}), ({}, {"x-parent-session-id": "p", "x-session-id": "c"})],
)
async def test_the_parent_of_a_session(world: World, fields: dict[str, Any], headers: dict[str, str]) -> None:
    entry = await entry_of(world, fields, headers)
    assert (entry["session"], entry["parent_session"]) == ("c", "p")
    parent = (await world.get("/v1/sessions/p")).json()
    assert (parent["children"], parent["requests"], parent["n_requests"]) == (["c"], [], 0)


async def test_a_trace_is_no_session_of_requests_that_name_a_parent(world: World) -> None:
    """Tracing adds the header on its own; that of one turn is in the requests of several sub-agents."""
    world.hold()
    children = []
    for parent in ("one", "two"):
        headers = {"x-request-id": parent, "x-parent-session-id": parent, "traceparent": TRACEPARENT}
        children.append(world.complete(max_tokens=1, headers=headers))
        await world.added(parent)
    world.gate.open()
    assert [(await child.end()).status for child in children] == [200, 200]
    sessions = (await world.get("/v1/sessions")).json()["data"]
    assert sorted((entry["id"], entry["n_requests"]) for entry in sessions) == [("one", 1), ("two", 1)]


@pytest.mark.parametrize(
    ("mode", "path", "fields", "headers", "expected"),
    [
        (None, COMPLETIONS, {"user": "u", "session_id": "s"}, {}, None),
        (None, COMPLETIONS, {"supersede": "k"}, {}, "k"),
        (None, COMPLETIONS, {"supersede": "k"}, {"x-supersede": "h"}, "h"),
        ("user", COMPLETIONS, {}, {}, None),
        ("user", COMPLETIONS, {"user": "u"}, {}, " user u completion"),
        ("user", COMPLETIONS, {"safety_identifier": "s"}, {}, " user s completion"),
        ("user", COMPLETIONS, {"user": "u", "supersede": "k"}, {}, "k"),
        ("user chats", "/v1/messages", {"metadata": {"user_id": "ann"}}, {}, " user ann chat"),
        ("session", COMPLETIONS, {"session_id": "s"}, {}, " session s completion"),
        ("session", COMPLETIONS, {}, {"x-session-id": "h"}, " session h completion"),
        ("session", COMPLETIONS, {}, {"traceparent": TRACEPARENT}, None),
        ("client-ip", COMPLETIONS, {"user": "u"}, {}, " client-ip 127.0.0.1 completion"),
        ("client-ip", COMPLETIONS, {"max_tokens": 0}, {}, None),
        ("client-ip", COMPLETIONS, {"max_tokens": 0, "supersede": "k"}, {}, "k"),
        ("client-ip", "/completion", {}, {}, " client-ip 127.0.0.1 completion"),
        ("client-ip", "/completion", {"n_predict": 0}, {}, None),
        ("client-ip", "/completion", {"supersede": "k"}, {}, "k"),
        ("client-ip", "/infill", {}, {}, " client-ip 127.0.0.1 infill"),
        ("client-ip", "/infill", {"n_predict": 0}, {}, None),
        ("client-ip", "/infill", {"supersede": "k"}, {}, "k"),
        ("client-ip", CHAT, {}, {}, None),
        ("client-ip", "/v1/messages", {}, {}, None),
        ("client-ip chats", CHAT, {}, {}, " client-ip 127.0.0.1 chat"),
        ("client-ip chats", CHAT, {"max_tokens": None, "n_predict": 0}, {}, None),
        ("client-ip", COMPLETIONS, {}, {"x-forwarded-for": "10.0.0.5"}, " client-ip 127.0.0.1 completion"),
        ("client-ip other", COMPLETIONS, {}, {"x-forwarded-for": "10.0.0.5"}, " client-ip 127.0.0.1 completion"),
        ("client-ip proxy", COMPLETIONS, {}, {"x-forwarded-for": "11.0.0.5"}, " client-ip 11.0.0.5 completion"),
        ("client-ip proxy", COMPLETIONS, {}, {"x-forwarded-for": "1.1.1.9, 10.0.0.7"}, " client-ip 1.1.1.9 completion"),
    ],
)
async def test_the_key_of_a_request(
    mode: str | None, path: str, fields: dict[str, Any], headers: dict[str, str], expected: str | None
) -> None:
    kind, _, more = (mode or "").partition(" ")
    proxies = {"proxy": PROXIES, "other": ("192.0.2.1",)}.get(more, ())
    async with open_world(supersede=kind or None, supersede_chats=more == "chats", trusted_proxies=proxies) as world:
        world.model.special_tokens = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}
        assert (await entry_of(world, fields, headers, path))["supersede"] == expected


@pytest.mark.parametrize(
    ("client", "expected"),
    [(("10.0.0.1", 2), "10.0.0.1"), (("10.0.0.1", 1), "10.0.0.1"), (("::1", 2), "::1"), (None, None)],
)
async def test_the_address_of_a_client_is_its_key_and_the_port_is_not(client: Any, expected: str | None) -> None:
    async with open_world(supersede="client-ip") as world:
        key = (await entry_of(world, {}, {}, client=client))["supersede"]
        assert key == (expected and f" client-ip {expected} completion")


FORMS = ("x" * 257, "a\nb", " before", "after ", "\x7f", "a\u2028b")


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("field", ["session_id", "parent_session_id", "supersede", "prompt_cache_key"])
async def test_a_name_of_a_wrong_form_is_refused_in_the_body(world: World, field: str, name: str) -> None:
    assert (await world.complete(**{field: name}).end()).refusal == (400, field)


@pytest.mark.parametrize("name", ["x" * 257, "\xff", "\x7f"])
@pytest.mark.parametrize("header", ["X-Session-Id", "X-Parent-Session-Id", "X-Supersede"])
async def test_a_name_of_a_wrong_form_is_refused_in_a_header(world: World, header: str, name: str) -> None:
    assert (await world.complete(headers={header.lower(): name}).end()).refusal == (400, header)


@pytest.mark.parametrize(("low_first", "first"), [(False, "7"), (True, "-3")])
async def test_the_highest_priority_is_first_or_the_lowest_if_that_is_set(low_first: bool, first: str) -> None:
    async with open_world(parallel=1, low_priority_first=low_first) as world:
        await world.computing()
        waiting = []
        for priority in (2, -3, 7):
            waiting.append(world.complete(priority=priority, max_tokens=1, headers={"x-request-id": str(priority)}))
            await world.added(str(priority))
        heads = world.engine.registry._waiting.heads()  # type: ignore[attr-defined]
        assert [request.id for request in heads] == [first]


async def test_a_family_without_an_end_is_refused(world: World) -> None:
    await world.complete(max_tokens=1, session_id="child", parent_session_id="parent").end()
    endless = await world.complete(session_id="parent", parent_session_id="child").end()
    assert endless.refusal == (400, "parent_session_id")


async def test_no_client_can_name_an_implied_key() -> None:
    async with open_world(supersede="client-ip") as world:
        victim = await world.computing(max_tokens=1)
        key = (await world.requests())[0]["supersede"]
        assert (await world.complete(supersede=key).end()).status == 400
        headers = {"x-supersede": key.strip(), "x-request-id": "similar"}
        similar = world.complete(headers=headers, max_tokens=1)
        await world.added("similar")
        world.gate.open()
        assert [(await victim.end()).status, (await similar.end()).status] == [200, 200]
