"""Where a request's session comes from, and that the newest of a session wins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

pytestmark = pytest.mark.anyio


async def session_of(world: World, fields: dict[str, Any], headers: dict[str, str], client: Any = None) -> Any:
    options = {"client": client} if client is not None else {}
    body = {"prompt": "x", "max_tokens": 1} | fields
    exchange = await world.begin("POST", "/v1/completions", body, headers=headers, **options).end()
    assert exchange.status == 200, exchange.body
    return (await world.requests())[0]["session"]


@pytest.mark.parametrize(
    ("mode", "fields", "headers", "expected"),
    [
        ("explicit", {}, {}, None),
        ("explicit", {}, {"x-session-id": "h"}, "h"),
        ("explicit", {"session_id": "b"}, {}, "b"),
        ("explicit", {"session_id": "b"}, {"x-session-id": "h"}, "h"),
        ("explicit", {"user": "u"}, {}, None),
        ("explicit", {"session_id": "ip:127.0.0.1"}, {}, "ip:127.0.0.1"),
        ("user", {}, {}, None),
        ("user", {"user": "u"}, {}, "user:u"),
        ("user", {"safety_identifier": "s"}, {}, "user:s"),
        ("user", {"prompt_cache_key": "p"}, {}, "user:p"),
        ("user", {"user": "u", "safety_identifier": "s", "prompt_cache_key": "p"}, {}, "user:u"),
        ("user", {"user": "u", "session_id": "b"}, {}, "b"),
        ("client-ip", {}, {}, "ip:127.0.0.1"),
        ("client-ip", {"user": "u"}, {}, "ip:127.0.0.1"),
        ("client-ip", {"session_id": "b"}, {}, "b"),
    ],
)
async def test_the_session_of_a_request(
    mode: str, fields: dict[str, Any], headers: dict[str, str], expected: str | None
) -> None:
    async with open_world(session_by=mode) as world:
        assert await session_of(world, fields, headers) == expected


@pytest.mark.parametrize(("mode", "name"), [("user", "user:u"), ("client-ip", "ip:10.0.0.1")])
@pytest.mark.parametrize("how", ["header", "body"])
async def test_nobody_can_name_a_session_that_belongs_to_others(mode: str, name: str, how: str) -> None:
    async with open_world(session_by=mode) as world:
        world.hold()
        victim = world.begin(
            "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, "user": "u"}, client=("10.0.0.1", 1)
        )
        await world.held()
        headers = {"x-session-id": name} if how == "header" else {}
        fields = {"session_id": name} if how == "body" else {}
        refused = await world.complete(headers=headers, **fields).end()
        assert (refused.status, refused.json()["error"]["param"]) == (400, "session_id")
        world.gate.open()
        assert (await victim.end()).status == 200


async def test_addresses_are_told_apart_and_ports_are_not() -> None:
    async with open_world(session_by="client-ip") as world:
        assert await session_of(world, {}, {}, ("10.0.0.1", 1)) == "ip:10.0.0.1"
        assert await session_of(world, {}, {}, ("10.0.0.1", 2)) == "ip:10.0.0.1"
        assert await session_of(world, {}, {}, ("::1", 2)) == "ip:::1"


async def test_a_peer_without_an_address_has_no_session() -> None:
    async with open_world(session_by="client-ip") as world:
        body = b'{"prompt": "x", "max_tokens": 1}'
        exchange = Exchange(
            world.app, "POST", "/v1/completions", body=body, headers={"content-type": "application/json"}, client=None
        )
        assert (await exchange.end()).status == 200
        assert (await world.requests())[0]["session"] is None


@pytest.mark.parametrize("session_id", ["", "x" * 257])
async def test_a_session_of_impossible_length_is_refused_in_the_body(session_id: str) -> None:
    async with open_world() as world:
        exchange = await world.complete(session_id=session_id).end()
        assert (exchange.status, exchange.json()["error"]["param"]) == (400, "session_id")


async def test_a_session_of_impossible_length_is_refused_in_the_header() -> None:
    async with open_world() as world:
        exchange = await world.complete(headers={"x-session-id": "x" * 257}).end()
        assert (exchange.status, exchange.json()["error"]["param"]) == (400, "session_id")


@pytest.mark.parametrize("n", [1, 3])
async def test_ten_arrivals_of_one_address_leave_one_live_and_the_tenth_completes(n: int) -> None:
    """Autocompletion: every keystroke sends a request, and nobody waits for the answers of the older ones."""
    async with open_world(session_by="client-ip", parallel=3) as world:
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
            assert counts.sessions == 1
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
        assert world.engine.counts().sessions == 0


async def test_requests_without_a_session_do_not_touch_each_other() -> None:
    async with open_world() as world:
        exchanges = [world.complete(max_tokens=2) for _ in range(3)]
        assert [(await exchange.end()).status for exchange in exchanges] == [200, 200, 200]


async def test_a_request_that_is_refused_does_not_cancel_its_sessions_live_one() -> None:
    async with open_world() as world:
        await world.running_stream("live", session_id="s")
        bad = [{"prompt": []}, {"prompt": "x", "n": 129}, {"prompt": "x" * 2000}, {"prompt": [999]}]
        for fields in bad:
            exchange = await world.complete(session_id="s", **fields).end()
            assert exchange.status == 400, exchange.body
        assert (await world.request("live"))["status"] == "running"
