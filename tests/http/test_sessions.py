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


@pytest.mark.parametrize("n", [1, 3])
async def test_ten_arrivals_of_one_address_leave_one_live_and_the_tenth_completes(n: int) -> None:
    """Autocompletion: every keystroke sends a request, and the answers of the older ones are not wanted."""
    async with open_world(supersede="client-ip", parallel=3) as world:
        world.hold()
        exchanges = []
        for number in range(10):
            name = f"key-{number}"
            exchanges.append(
                world.complete(name, n=n, max_tokens=3, stream=True, headers={"x-request-id": name}, ignore_eos=True)
            )
            await world.added(name)
            counts = world.engine.counts()
            assert counts.waiting + counts.running == 1
        world.gate.open()
        for exchange in exchanges:
            await exchange.end()
        listed = {entry["id"]: entry for entry in await world.requests()}
        assert len(listed) == 10
        for number, exchange in enumerate(exchanges[:-1]):
            assert listed[f"key-{number}"]["cancel_reason"] == "superseded"
            assert listed[f"key-{number}"]["superseded_by"] == f"key-{number + 1}"
            assert "superseded" in exchange.events[-1]
        assert listed["key-9"]["status"] == "finished"
        assert exchanges[-1].events[-1] == "[DONE]"


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
        answer = (await world.post("/v1/sessions/root/cancel?wait=false")).json()
        world.gate.open()
        assert sorted(cancelled["id"] for cancelled in answer["requests"]) == ["a1", "a2", "b", "c", "d"]
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


async def test_descendants_can_be_left_out(world: World) -> None:
    world.hold()
    parent, child = member(world, "p", "parent"), member(world, "c", "child", "parent", max_tokens=5)
    await world.added("c")
    answer = (await world.post("/v1/sessions/parent/cancel?descendants=false&wait=false")).json()
    world.gate.open()
    assert [cancelled["id"] for cancelled in answer["requests"]] == ["p"]
    assert [(await parent.end()).status, (await child.end()).status] == [499, 200]


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
    bad = [{"prompt": []}, {"prompt": "x", "n": 129}, {"prompt": "x" * 2000}, {"prompt": [999]}]
    for fields in bad:
        exchange = await world.complete(supersede="k", **fields).end()
        assert exchange.status == 400, exchange.body
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


async def test_delete_cancels_too(world: World) -> None:
    world.hold()
    exchange = member(world, "mine", "s")
    await world.held()
    answer = (await world.begin("DELETE", "/v1/requests/mine").end()).json()
    assert (answer["id"], answer["outcome"], answer["reason"]) == ("mine", "cancelled", "explicit")
    assert (await exchange.end()).status == 499
    assert (await world.begin("DELETE", "/v1/requests/unknown").end()).status == 404


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"/v1/sessions/{'x' * 257}/cancel", "session_id"),
        (f"/v1/sessions/{'x' * 257}/cancel?hold=60", "session_id"),
        ("/v1/sessions/a\x7fb/cancel?hold=60", "session_id"),
        (f"/v1/requests/{'x' * 129}/cancel?hold=60", "request_id"),
        ("/v1/requests/two words/cancel?hold=60", "request_id"),
    ],
)
async def test_what_cannot_come_is_not_held(world: World, path: str, param: str) -> None:
    assert (await world.post(path)).refusal == (400, param)


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


async def entry_of(
    world: World, fields: dict[str, Any], headers: dict[str, str], client: Any = None, path: str = COMPLETIONS
) -> dict[str, Any]:
    options = {"client": client} if client is not None else {}
    exchange = await world.begin("POST", path, BODIES[path] | fields, headers=headers, **options).end()
    assert exchange.status == 200, exchange.body
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
    ("mode", "fields", "headers", "expected"),
    [
        (None, {"user": "u", "session_id": "s"}, {}, None),
        (None, {"supersede": "k"}, {}, "k"),
        (None, {"supersede": "k"}, {"x-supersede": "h"}, "h"),
        ("user", {}, {}, None),
        ("user", {"user": "u"}, {}, " user u completion"),
        ("user", {"safety_identifier": "s"}, {}, " user s completion"),
        ("user", {"user": "u", "supersede": "k"}, {}, "k"),
        ("session", {"session_id": "s"}, {}, " session s completion"),
        ("session", {}, {"x-session-id": "h"}, " session h completion"),
        ("session", {}, {"traceparent": TRACEPARENT}, None),
        ("client-ip", {"user": "u"}, {}, " client-ip 127.0.0.1 completion"),
        ("client-ip", {"max_tokens": 0}, {}, None),
        ("client-ip", {"max_tokens": 0, "supersede": "k"}, {}, "k"),
    ],
)
async def test_the_key_of_a_request(
    mode: str | None, fields: dict[str, Any], headers: dict[str, str], expected: str | None
) -> None:
    async with open_world(supersede=mode) as world:
        assert (await entry_of(world, fields, headers))["supersede"] == expected


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/v1/completions", {}, " client-ip 127.0.0.1 completion"),
        ("/completion", {}, " client-ip 127.0.0.1 completion"),
        ("/completion", {"n_predict": 0}, None),
        ("/infill", {}, " client-ip 127.0.0.1 infill"),
        ("/infill", {"n_predict": 0}, None),
        ("/completion", {"supersede": "k"}, "k"),
        ("/infill", {"supersede": "k"}, "k"),
        (CHAT, {}, None),
        ("/v1/messages", {}, None),
    ],
)
async def test_implied_keys_are_of_a_class_of_endpoint(path: str, fields: dict[str, Any], expected: str | None) -> None:
    async with open_world(supersede="client-ip") as world:
        world.model.special_tokens = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}
        assert (await entry_of(world, fields, {}, path=path))["supersede"] == expected


async def test_chats_supersede_where_that_is_asked_for() -> None:
    async with open_world(supersede="client-ip", supersede_chats=True) as world:
        assert (await entry_of(world, {}, {}, path=CHAT))["supersede"] == " client-ip 127.0.0.1 chat"
        warm_up = {"max_tokens": None, "n_predict": 0}
        assert (await entry_of(world, warm_up, {}, path=CHAT))["supersede"] is None


async def test_addresses_are_told_apart_and_ports_are_not() -> None:
    async with open_world(supersede="client-ip") as world:
        for client in (("10.0.0.1", 1), ("10.0.0.1", 2)):
            assert (await entry_of(world, {}, {}, client))["supersede"] == " client-ip 10.0.0.1 completion"
        assert (await entry_of(world, {}, {}, ("::1", 2)))["supersede"] == " client-ip ::1 completion"


@pytest.mark.parametrize(
    ("proxies", "forwarded_for", "expected"),
    [
        ((), "10.0.0.5", "127.0.0.1"),
        (("192.0.2.1",), "10.0.0.5", "127.0.0.1"),
        (("127.0.0.1",), "10.0.0.5", "10.0.0.5"),
        (("127.0.0.0/8", "10.0.0.0/24"), "203.0.113.9, 10.0.0.7", "203.0.113.9"),
    ],
)
async def test_only_a_trusted_proxy_names_a_client(proxies: tuple[str, ...], forwarded_for: str, expected: str) -> None:
    async with open_world(supersede="client-ip", trusted_proxies=proxies) as world:
        entry = await entry_of(world, {}, {"x-forwarded-for": forwarded_for})
        assert entry["supersede"] == f" client-ip {expected} completion"


async def test_a_peer_without_an_address_has_no_key() -> None:
    async with open_world(supersede="client-ip") as world:
        body = {"prompt": "x", "max_tokens": 1}
        assert (await world.post(COMPLETIONS, body, client=None)).status == 200
        assert (await world.requests())[0]["supersede"] is None


FORMS = ("x" * 257, "a\nb", " before", "after ", "\x7f", "a\u2028b")


@pytest.mark.parametrize("name", ["", None])
@pytest.mark.parametrize("field", ["session_id", "parent_session_id", "supersede", "prompt_cache_key"])
async def test_an_empty_name_in_the_body_is_none(world: World, field: str, name: str | None) -> None:
    assert (await world.complete(**{field: name}).end()).status == 200
    (request,) = await world.requests("?status=finished")
    assert (request["session"], request["supersede"]) == (None, None)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("field", ["session_id", "parent_session_id", "supersede", "prompt_cache_key"])
async def test_a_name_of_a_wrong_form_is_refused_in_the_body(world: World, field: str, name: str) -> None:
    assert (await world.complete(**{field: name}).end()).refusal == (400, field)


@pytest.mark.parametrize("name", ["x" * 257, "\xff", "\x7f"])
@pytest.mark.parametrize("header", ["X-Session-Id", "X-Parent-Session-Id", "X-Supersede"])
async def test_a_name_of_a_wrong_form_is_refused_in_a_header(world: World, header: str, name: str) -> None:
    assert (await world.complete(headers={header.lower(): name}).end()).refusal == (400, header)


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 0.5, "1", True])
async def test_a_priority_is_an_integer_of_32_bits(world: World, priority: Any) -> None:
    assert (await world.complete(priority=priority).end()).refusal == (400, "priority")


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
    assert (await world.complete(session_id="parent", parent_session_id="child").end()).refusal == (
        400,
        "parent_session_id",
    )


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
