"""Where a request comes from: its session, its parent, its supersede key, its priority, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

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
    entry: dict[str, Any] = (await world.requests())[0]
    return entry


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
async def test_only_a_trusted_proxy_says_whose_request_it_is(
    proxies: tuple[str, ...], forwarded_for: str, expected: str
) -> None:
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
    exchange = await world.complete(**{field: name}).end()
    assert exchange.status == 200
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


@pytest.mark.parametrize("priority", [2, -2, 0.5, "1"])
async def test_there_are_three_priorities(world: World, priority: Any) -> None:
    assert (await world.complete(priority=priority).end()).refusal == (400, "priority")


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
