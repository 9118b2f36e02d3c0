"""A request over a socket of its own, which can be left at any moment and in any way."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

LINGER_ZERO = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event, and when it came, on the monotonic clock."""

    at: float
    data: dict[str, Any]


@dataclass(slots=True)
class Answer:
    """What came back, so far or in all.

    Attributes
    ----------
    body
        Of an answer in one piece: its JSON, or its text if it is none.
    done
        The stream said ``[DONE]``.
    ended_at
        When the last byte had come, on the monotonic clock; None before that, and if the connection broke.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    body: Any = None
    done: bool = False
    ended_at: float | None = None

    @property
    def complete(self) -> bool:
        """Whether a client would take this for a whole answer."""
        if self.body is not None:
            return self.status == 200
        return self.done and self.ended_at is not None and self.error is None

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [self.body] if isinstance(self.body, dict) else [event.data for event in self.events]

    @property
    def error(self) -> dict[str, Any] | None:
        return next((payload["error"] for payload in self.payloads if "error" in payload), None)

    @property
    def error_code(self) -> str | None:
        return None if self.error is None else self.error["code"]

    @property
    def usage(self) -> dict[str, Any] | None:
        return next((payload["usage"] for payload in reversed(self.payloads) if payload.get("usage")), None)

    def tokens(self, choice: int = 0) -> list[tuple[str, float]]:
        """Tokens and their logprobs, of a request that asked for them."""
        found: list[tuple[str, float]] = []
        for payload in self.payloads:
            for entry in payload.get("choices", ()):
                if entry["index"] == choice and entry["logprobs"] is not None:
                    found += zip(entry["logprobs"]["tokens"], entry["logprobs"]["token_logprobs"], strict=True)
        return found


class Call:
    """One HTTP request in flight. ``answer`` is the task that reads; `partial` is what it has read so far."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request_id: str | None) -> None:
        self.id = request_id or ""
        self.sent_at = time.monotonic()
        self.partial = Answer()
        self._reader = reader
        self._writer = writer
        self._progress = asyncio.Event()
        self.answer: asyncio.Task[Answer] = asyncio.create_task(self._read())

    @classmethod
    async def send(
        cls,
        url: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        method: str = "POST",
        request_id: str | None = None,
        session: str | None = None,
    ) -> Call:
        """Connect and send; returns when everything is handed to the kernel."""
        target = urlsplit(url)
        reader, writer = await asyncio.open_connection(target.hostname, target.port, limit=2**24)
        content = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", f"Host: {target.netloc}", "Connection: close"]
        head += [f"Content-Type: application/json\r\nContent-Length: {len(content)}"] if body is not None else []
        head += [f"X-Request-Id: {request_id}"] if request_id is not None else []
        head += [f"X-Session-Id: {session}"] if session is not None else []
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        return cls(reader, writer, request_id)

    async def wait_for_events(self, count: int) -> bool:
        """Until `count` events have come; False if the answer ended before."""
        while len(self.partial.events) < count:
            if self.answer.done():
                return False
            self._progress.clear()
            await self._progress.wait()
        return True

    async def first_event(self) -> Event:
        """The first event, which for a completion with logprobs is the first token."""
        if not await self.wait_for_events(1):
            raise RuntimeError(f"{self.id} ended without an event: {self.partial}")
        return self.partial.events[0]

    def leave(self, *, reset: bool = False) -> float:
        """Close the socket, with RST or FIN; returns the monotonic time."""
        if reset:
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self.answer.cancel()
        at = time.monotonic()
        self._writer.transport.abort()
        return at

    def close_half(self) -> None:
        """Send FIN and go on reading."""
        self._writer.write_eof()

    async def _read(self) -> Answer:
        try:
            await self._read_head()
            await self._read_body()
            self.partial.ended_at = time.monotonic()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # `ended_at` stays None
        finally:
            self._writer.close()
            asyncio.get_running_loop().call_soon(self._progress.set)
        return self.partial

    async def _read_head(self) -> None:
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.partial.status = int(status.split()[1])
        pairs = (line.split(":", 1) for line in lines if line)
        self.partial.headers = {name.strip().lower(): value.strip() for name, value in pairs}

    async def _read_body(self) -> None:
        streams = self.partial.headers.get("content-type", "").startswith("text/event-stream")
        content = bytearray()
        async for piece in self._pieces():
            content += piece
            while streams and (end := content.find(b"\n\n")) >= 0:
                self._take_event(bytes(content[:end]))
                del content[: end + 2]
        if not streams:
            is_json = self.partial.headers.get("content-type", "").startswith("application/json")
            self.partial.body = json.loads(content) if is_json else content.decode()

    async def _pieces(self) -> Any:
        if "content-length" in self.partial.headers:
            yield await self._reader.readexactly(int(self.partial.headers["content-length"]))
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    def _take_event(self, event: bytes) -> None:
        if event.startswith(b":"):
            return  # a comment, which keeps a quiet stream alive
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            self.partial.done = True
        else:
            self.partial.events.append(Event(time.monotonic(), json.loads(data)))
        self._progress.set()
