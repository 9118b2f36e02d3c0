"""The feed goes on over breaks and restarts, and says in one line why it cannot begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from pyllmcancel.sse import ServerEvent
from pyllmcancel.top import feed
from pyllmcancel.top.client import open_client
from pyllmcancel.top.feed import Connected, Feed, FeedError, Happening, Lost
from tests.support.scripted_server import LAST_CHUNK, LIMIT, STREAM_HEAD, ScriptedServer, chunk, head, whole
from tests.top.events import event_bytes, snapshot, stats

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FIRST_WAIT", 0.0)


class Reader:
    """A feed that is being read; what happened, in order."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._told: asyncio.Queue[Happening] = asyncio.Queue()
        self.task = asyncio.create_task(Feed(client).follow(self._told.put_nowait))

    async def next(self) -> Happening:
        async with asyncio.timeout(LIMIT):
            return await self._told.get()


@asynccontextmanager
async def reader_of(url: str, key: str = "") -> AsyncIterator[Reader]:
    async with open_client(url, key) as client:
        reader = Reader(client)
        try:
            yield reader
        finally:
            reader.task.cancel()
            await asyncio.gather(reader.task, return_exceptions=True)


def events(*found: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(chunk(event_bytes(fields, event_id)) for event_id, fields in found)


async def test_after_a_break_it_goes_on_behind_the_last_event(server: ScriptedServer) -> None:
    async with reader_of(server.url, "secret") as reader:
        peer = await server.peer()
        asked = await peer.receive()
        assert asked.line == "GET /v1/events HTTP/1.1"
        assert asked.headers["authorization"] == "Bearer secret"
        assert "last-event-id" not in asked.headers
        peer.send(STREAM_HEAD + events(("b1-1", snapshot()), ("b1-7", stats(1.0))))
        assert isinstance(await reader.next(), Connected)
        for event_id in ("b1-1", "b1-7"):
            event = await reader.next()
            assert isinstance(event, ServerEvent)
            assert event.id == event_id
        peer.send(chunk(b"id: b1-9\nevent: stats\nda"))
        peer.abort()
        lost = await reader.next()
        assert isinstance(lost, Lost)
        again = await server.peer()
        assert (await again.receive()).headers["last-event-id"] == "b1-7"
        again.send(STREAM_HEAD + events(("b1-9", stats(2.0))))
        assert isinstance(await reader.next(), Connected)
        event = await reader.next()
        assert isinstance(event, ServerEvent)
        assert event.id == "b1-9"


async def test_a_feed_that_the_server_closes_is_asked_for_again(server: ScriptedServer) -> None:
    async with reader_of(server.url) as reader:
        peer = await server.peer()
        await peer.receive()
        peer.send(STREAM_HEAD + events(("b1-1", snapshot())) + LAST_CHUNK)
        happened = [await reader.next() for _ in range(3)]
        assert isinstance(happened[-1], Lost)
        assert happened[-1].why == "the server closed the feed"
        await peer.receive()


async def test_a_server_that_is_loading_or_full_is_waited_for(server: ScriptedServer) -> None:
    loading = whole({"error": {"message": "the model is loading"}}, "503 Service Unavailable", Retry_After="0")
    async with reader_of(server.url) as reader:
        peer = await server.peer()
        await peer.receive()
        peer.send(loading)
        lost = await reader.next()
        assert isinstance(lost, Lost)
        assert lost.why == "503: the model is loading"
        await peer.receive()
        peer.send(STREAM_HEAD + events(("b1-1", snapshot())))
        assert isinstance(await reader.next(), Connected)


MESSAGE = {"error": {"message": "Invalid\x1b[2J key"}}
REFUSALS = {
    "no key": (whole(MESSAGE, "401 Unauthorized"), "", "wants an API key: give one with --api-key"),
    "wrong key": (whole(MESSAGE, "401 Unauthorized"), "k", "does not know this API key: give one with --api-key"),
    "forbidden": (whole(MESSAGE, "403 Forbidden"), "k", "refuses: Invalid\N{REPLACEMENT CHARACTER}[2J key"),
    "no feed": (whole({"detail": "Not Found"}, "404 Not Found"), "", "is it a pyllmcancel that has /v1/events?"),
    "a page": (head(Content_Type="text/html", Content_Length="4") + b"<h1>", "", "there is no feed at"),
    "moved": (head("301 Moved Permanently", Location="https://x/", Content_Length="0"), "", "has moved to https://x/"),
    "a teapot": (head("418 I'm a teapot", Content_Length="0"), "", "answers 418: I'm a teapot"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n", "", "it does not speak HTTP; "),
}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_what_cannot_be_read_is_said_in_a_line_that_helps(server: ScriptedServer, kind: str) -> None:
    answer, key, words = REFUSALS[kind]
    async with reader_of(server.url, key) as reader:
        peer = await server.peer()
        await peer.receive()
        peer.send(answer)
        with pytest.raises(FeedError) as raised:
            await asyncio.wait_for(reader.task, LIMIT)
    assert words in str(raised.value)
    assert str(raised.value).isprintable()


async def test_nobody_there() -> None:
    async with reader_of("127.0.0.1:1") as reader:
        with pytest.raises(FeedError, match=r"cannot reach http://127.0.0.1:1.*: connection refused; start one with"):
            await asyncio.wait_for(reader.task, LIMIT)


async def test_a_server_that_goes_away_is_waited_for_but_one_that_now_wants_a_key_is_not(
    server: ScriptedServer,
) -> None:
    async with reader_of(server.url) as reader:
        peer = await server.peer()
        await peer.receive()
        peer.send(STREAM_HEAD + events(("b1-1", snapshot())))
        peer.send(LAST_CHUNK)
        await peer.receive()
        peer.send(whole({}, "401 Unauthorized"))
        with pytest.raises(FeedError, match="wants an API key"):
            await asyncio.wait_for(reader.task, LIMIT)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "/x.sock"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(FeedError, match="--url"):
        open_client(url, "")


@pytest.mark.parametrize("url", ["http://x:8000", "http://x:8000/", "http://x:8000/v1", "http://x:8000/v1/", "x:8000"])
async def test_an_address_with_or_without_the_apis_path(url: str) -> None:
    async with open_client(url, "") as client:
        assert str(client.base_url) == "http://x:8000"


async def test_a_key_that_no_header_can_carry() -> None:
    with pytest.raises(FeedError, match="--api-key"):
        open_client("http://x", "\u6771")


def test_waits_grow_and_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FIRST_WAIT", 0.5)
    reading = Feed(httpx.AsyncClient())
    waits = [reading._back_off() for _ in range(50)]
    assert 0.25 <= waits[0] <= 0.5
    assert all(0.5 * feed.LONGEST_WAIT <= wait <= feed.LONGEST_WAIT for wait in waits[10:])
