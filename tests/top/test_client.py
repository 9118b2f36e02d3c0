"""Cancels, and what is said of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pyllmcancel.top.client import cancel_request, cancel_session, open_client
from tests.support.scripted_server import LIMIT, ScriptedServer, head, whole

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 7, "completion_tokens": 34}
DONE = {"id": "r", "outcome": "cancelled", "reason": "explicit", "phase": "decode", "cancel_latency_ms": 1.94}
CANCELLED = DONE | {"usage": USAGE}
SAID = {
    "cancelled": (whole(CANCELLED), "a/b: compute stopped after 1.9 ms, in decode, 34 tokens generated"),
    "waited": (whole(CANCELLED | {"phase": "waiting", "cancel_latency_ms": None}), "a/b: cancelled, in waiting, 34 t"),
    "ended": (whole({"outcome": "already_finished", "reason": "stop"}), "a/b: it had ended already (stop)"),
    "unknown": (whole({"error": {"message": "no such"}}, "404 Not Found"), "not cancelled: 404: no such"),
    "no JSON": (head(Content_Length="2") + b"OK", "not cancelled: 200: OK"),
    "no object": (whole([1]), "not cancelled: 200: OK"),
    "no gzip": (head(Content_Encoding="gzip", Content_Length="2") + b"OK", "not cancelled: "),
    "nothing": (b"", "not cancelled: "),
}


async def answered(server: ScriptedServer, asking: Coroutine[Any, Any, str], answer: bytes) -> tuple[str, str]:
    """The line of what was asked, and what is said of `answer`."""
    asked = asyncio.create_task(asking)
    peer = await server.peer()
    received = await peer.receive()
    peer.send(answer)
    peer.close()
    return received.line, await asyncio.wait_for(asked, LIMIT)


@pytest.mark.parametrize("kind", SAID)
async def test_a_cancel_and_what_is_said_of_it(server: ScriptedServer, kind: str) -> None:
    async with open_client(server.url, "") as client:
        line, said = await answered(server, cancel_request(client, "a/b"), SAID[kind][0])
    assert line == "POST /v1/requests/a%2Fb/cancel HTTP/1.1"
    assert said.startswith(SAID[kind][1])


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "nothing was live"),
        ([CANCELLED], "compute stopped after 1.9 ms, in decode"),
        ([CANCELLED, DONE | {"cancel_latency_ms": 3.0}], "2 requests cancelled, compute stopped after at most 3.0 ms"),
    ],
)
async def test_a_sessions_cancel(server: ScriptedServer, requests: list[Any], words: str) -> None:
    answer = whole({"session": "..", "descendants": True, "requests": requests})
    async with open_client(server.url, "") as client:
        line, said = await answered(server, cancel_session(client, "../?x"), answer)
    assert line == "POST /v1/sessions/%2E%2E%2F%3Fx/cancel HTTP/1.1"
    assert said.startswith("session ../?x: " + words)


async def test_an_administrator_says_whose(server: ScriptedServer) -> None:
    answer = whole({"outcome": "already_finished", "reason": "stop"})
    async with open_client(server.url, "") as client:
        line, _ = await answered(server, cancel_request(client, "a", "bob & co"), answer)
    assert line == "POST /v1/requests/a/cancel?owner=bob+%26+co HTTP/1.1"


async def test_what_is_said_has_no_control_characters(server: ScriptedServer) -> None:
    answer = whole({"outcome": "already_finished", "reason": "\x1b[2J"})
    async with open_client(server.url, "") as client:
        _, said = await answered(server, cancel_request(client, "a\nb"), answer)
    assert said.isprintable()


@pytest.mark.parametrize("name", ["half a pair \ud800", "a" * 70_000])
async def test_a_name_that_fits_into_no_address(name: str) -> None:
    async with open_client("http://127.0.0.1:1", "") as client:
        assert await cancel_request(client, name) == "not cancelled: its name does not fit into an address"
        assert await cancel_session(client, name) == "not cancelled: its name does not fit into an address"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"requests": 3, "cancel_latency_ms": NaN, "usage": []}',
        b'{"requests": [{"cancel_latency_ms": 1%b}, {}], "cancel_latency_ms": 1e999}' % (b"0" * 400),
    ],
)
async def test_an_answer_of_another_form_is_survived(server: ScriptedServer, body: bytes) -> None:
    answer = head(Content_Length=str(len(body))) + body
    async with open_client(server.url, "") as client:
        for ask in (cancel_request, cancel_session):
            _, said = await answered(server, ask(client, "a"), answer)
            assert said.isprintable()


async def test_an_answer_without_an_end_is_not_read_on(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.top.client.LONGEST_ANSWER", 100)
    async with open_client(server.url, "") as client:
        asked = asyncio.create_task(cancel_request(client, "a"))
        peer = await server.peer()
        await peer.receive()
        peer.send(head(Content_Length="1000000") + b" " * 200)
        assert (await asyncio.wait_for(asked, LIMIT)).startswith("not cancelled: 200")
        peer.close()
