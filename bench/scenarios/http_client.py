"""A request on a connection of its own, which can be left at any moment and in any way; its answer is kept whole."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import h11

from pyllmcancel.bench.client import Client, Target
from pyllmcancel.bench.connection import LINGER_ZERO, Connection
from pyllmcancel.bench.sse import EventParser

__all__ = ["LINGER_ZERO", "Answer", "Call", "Event"]


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

    def __init__(self, connection: Connection, request_id: str | None) -> None:
        self.id = request_id or ""
        self.sent_at = time.monotonic()
        self.partial = Answer()
        self._connection = connection
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
        client = Client(Target(url=url, keep_alive=False))
        content = b"" if body is None else json.dumps(body).encode()
        named = {"X-Request-Id": request_id, "X-Session-Id": session}
        more = {name: value for name, value in named.items() if value is not None}
        connection = await Connection.open(client.address)
        await connection.send(client.request(method, path, content, more=more), content)
        return cls(connection, request_id)

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
        self.answer.cancel()
        at = time.monotonic()
        self._connection.abort(reset=reset)
        return at

    def close_half(self) -> None:
        """Send FIN and go on reading."""
        self._connection.close_half()

    async def _read(self) -> Answer:
        try:
            content = await self._read_body()
            if content is not None:
                is_json = self.partial.headers.get("content-type", "").startswith("application/json")
                self.partial.body = json.loads(content) if is_json else content.decode()
            self.partial.ended_at = time.monotonic()
        except (h11.RemoteProtocolError, ConnectionError):
            pass  # `ended_at` stays None
        finally:
            self._connection.abort()
            asyncio.get_running_loop().call_soon(self._progress.set)
        return self.partial

    async def _read_body(self) -> bytearray | None:
        """The whole body; None if it was a stream, whose events are noted as they come."""
        content, parser, streams = bytearray(), EventParser(), False
        while True:
            match await self._connection.receive():
                case h11.Response(status_code=status, headers=headers):
                    self.partial.status = status
                    self.partial.headers = {name.decode(): value.decode("latin-1") for name, value in headers}
                    streams = self.partial.headers.get("content-type", "").startswith("text/event-stream")
                case h11.Data(data=data) if streams:
                    for event in parser.feed(bytes(data)):
                        self._take_event(event.value)
                case h11.Data(data=data):
                    content += data
                case h11.EndOfMessage():
                    return None if streams else content
                case h11.ConnectionClosed():
                    raise ConnectionError("closed before the answer was complete")

    def _take_event(self, data: str) -> None:
        if data == "[DONE]":
            self.partial.done = True
        else:
            self.partial.events.append(Event(time.monotonic(), json.loads(data)))
        self._progress.set()
