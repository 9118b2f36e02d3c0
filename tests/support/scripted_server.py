"""A server in the test's own event loop that does what the test says, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

LIMIT = 60.0  # seconds for anything that takes a moment

Handle = Callable[["Peer"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Received:
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        return json.loads(self.body)


class Peer:
    """One connection, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def receive(self) -> Received:
        async with asyncio.timeout(LIMIT):
            line, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            pairs = (entry.split(":", 1) for entry in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Received(line, headers, body)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def gone(self) -> bytes:
        """Wait until the client has closed; what it had sent before."""
        async with asyncio.timeout(LIMIT):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        self.writer.transport.abort()


class ScriptedServer:
    """Connections wait in `peers` until the test takes them, or are given to `handle`."""

    def __init__(self, handle: Handle | None) -> None:
        self._handle = handle
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def open(cls, handle: Handle | None = None) -> AsyncIterator[ScriptedServer]:
        server = cls(handle)
        listening = await asyncio.start_server(server._accept, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield server
        finally:
            listening.close()
            for peer in server._all:
                peer.abort()

    async def peer(self) -> Peer:
        async with asyncio.timeout(LIMIT):
            return await self._peers.get()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._all.append(peer)
        if self._handle is None:
            self._peers.put_nowait(peer)
        else:
            try:
                await self._handle(peer)
            except (asyncio.IncompleteReadError, ConnectionError):
                peer.abort()


def head(status: str = "200 OK", **headers: str) -> bytes:
    """The head of an answer; underscores in names stand for dashes."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def whole(fields: Any, status: str = "200 OK", **headers: str) -> bytes:
    """An answer in one piece."""
    body = json.dumps(fields).encode()
    more = {"Content_Type": "application/json", "Content_Length": str(len(body))} | headers
    return head(status, **more) + body


STREAM_HEAD = head(Content_Type="text/event-stream; charset=utf-8", Transfer_Encoding="chunked")
DONE = b"data: [DONE]\n\n"
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(fields: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(fields).encode() + end


def token(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def stream(*payloads: Any, done: bool = True) -> bytes:
    events = b"".join(chunk(event(payload)) for payload in payloads)
    return STREAM_HEAD + events + (chunk(DONE) if done else b"") + LAST_CHUNK


def completion(text: str = "a b", finish: str | None = "length") -> dict[str, Any]:
    return token(text, finish) | {"usage": {"prompt_tokens": 7, "completion_tokens": 2}}
