"""One request over a blocking socket of its own, every byte of it ours to send, to read late, or to leave unread."""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from operator import sub
from typing import Any

from pyllmcancel.sse import EventDecoder, ServerEvent

LINGER_ZERO = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN
# Seconds without a byte after which a request counts as hung: longer than any machine is merely busy.
HUNG = 3000.0 if "PYLLMCANCEL_SANITIZED" in os.environ else 300.0
SMALLEST_BUFFER = 4096  # of a client that reads slowly, in the kernel
ROUNDING = 1e-4  # between two vectors of the same text
PIECE = 512  # bytes that it reads at a time


@dataclass(slots=True)
class Reply:
    """The answer as far as a client has read it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    # JSON objects: the events of a stream, or the one body.
    payloads: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    done: bool = False
    # How often the answer said that it was over: ``[DONE]``, llama-server's last event, an error, or a whole body.
    ends: int = 0
    framed: bool = False  # the last byte that HTTP promises has come

    @property
    def error(self) -> dict[str, Any] | None:
        return next((payload["error"] for payload in self.payloads if "error" in payload), None)

    @property
    def complete(self) -> bool:
        """True if a client would take this for a whole answer."""
        return self.status == 200 and self.framed and self.error is None and self.ends > 0

    def texts(self) -> tuple[str, ...]:
        """The text of each choice, with the calls of tools, in every dialect."""
        found: defaultdict[int, str] = defaultdict(str)
        for payload in self.payloads:
            for choice in payload.get("choices", ()):
                part = choice.get("message") or choice.get("delta") or {}
                calls = "".join(called(call["function"]) for call in part.get("tool_calls") or ())
                found[choice["index"]] += (choice.get("text") or part.get("content") or "") + calls
            for item in payload.get("output", ()):  # of /v1/responses
                found[0] += called(item) + written(item.get("content", ""))
            if "content" in payload:
                found[0] += written(payload["content"])
        return tuple(found[index] for index in sorted(found))

    def vectors(self) -> tuple[list[float], ...]:
        """The embeddings."""
        entries = (entry for payload in self.payloads for entry in payload.get("data", ()))
        return tuple(entry["embedding"] for entry in entries if "embedding" in entry)

    def take(self, data: str) -> None:
        """Read one event of a stream."""
        if data == "[DONE]":
            self.done = True
            self.ends += 1
        else:
            payload = json.loads(data)
            self.payloads.append(payload)
            self.ends += "error" in payload or payload.get("stop") is True


def written(content: str | list[dict[str, Any]]) -> str:
    """Return a content's text; Messages and Responses have it in blocks."""
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def called(call: Mapping[str, str]) -> str:
    """Return the tool's name and arguments, or the part of them that an event has."""
    return call.get("name", "") + call.get("arguments", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, to be compared with other answers to the same question."""

    texts: tuple[str, ...]
    vectors: tuple[list[float], ...]

    @classmethod
    def of(cls, reply: Reply) -> Answer:
        return cls(reply.texts(), reply.vectors())

    def same(self, other: Answer) -> bool:
        """Texts word for word; vectors, whose length is 1, but for rounding."""
        if self.texts != other.texts or len(self.vectors) != len(other.vectors):
            return False
        pairs = zip(self.vectors, other.vectors, strict=True)
        return all(len(one) == len(two) and max(map(abs, map(sub, one, two))) < ROUNDING for one, two in pairs)

    def __str__(self) -> str:
        return f"{self.texts}" if self.texts else f"{[vector[:3] for vector in self.vectors]} …"


class Wire(AbstractContextManager["Wire"]):
    """A connection for one request. Closed, with FIN, when the block ends."""

    def __init__(self, port: int, *, slow: bool = False) -> None:
        self._socket = socket.socket()
        if slow:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALLEST_BUFFER)
        self._socket.settimeout(HUNG)
        self._socket.connect(("127.0.0.1", port))
        self._slow = slow

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answered(self, seconds: float = 0.0) -> bool:
        """True as soon as there are unread data; it waits for them, at most so long."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def leave(self, *, reset: bool = False) -> None:
        """Close, with RST or FIN."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self._socket.close()

    def close_half(self) -> None:
        """Send FIN; what comes can still be read. The server may have closed before."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def read(self, n_events: int | None = None, then: Callable[[], object] | None = None) -> Reply:
        """Read the answer, or `n_events` of it; with `then`, call it after those, and continue.

        A broken connection is no error: see `Reply.framed`.
        """
        reply = Reply()
        # Closed at the end, or the socket would stay open for it.
        with HTTPResponse(self._socket) as response, suppress(HTTPException, ConnectionError):
            response.begin()
            reply.status = response.status
            reply.headers = {name.lower(): value for name, value in response.getheaders()}
            self._read_body(response, reply, n_events, then)
        return reply

    def _read_body(
        self, response: HTTPResponse, reply: Reply, n_events: int | None, then: Callable[[], object] | None
    ) -> None:
        kind = reply.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            for event in self._events(response):
                reply.take(event.data)
                if n_events is not None and len(reply.payloads) >= n_events:
                    if then is None:
                        return
                    n_events = None
                    then()
        else:
            content = b"".join(self._pieces(response))
            reply.ends += 1
            if kind.startswith("application/json"):
                body = json.loads(content)
                reply.payloads = body if isinstance(body, list) else [body]
            else:
                reply.text = content.decode()
        reply.framed = True

    def _pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        while piece := response.read1(PIECE if self._slow else 65_536):
            yield piece
            if self._slow:
                time.sleep(0.005)  # what makes it slow
        if response.length:
            raise ConnectionResetError("the body is shorter than its head says")

    def _events(self, response: HTTPResponse) -> Iterator[ServerEvent]:
        decoder = EventDecoder()
        for piece in self._pieces(response):
            yield from decoder.feed(piece)

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def request_bytes(
    path: str,
    body: Mapping[str, Any] | None,
    *,
    request_id: str | None = None,
    session: str | None = None,
    parent: str | None = None,
) -> bytes:
    """A request as it goes over the wire: POST with a body, GET without; `session` is its supersede key, too, and
    `parent` the session above it.
    """
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [] if body is None else ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [] if request_id is None else [f"X-Request-Id: {request_id}"]
    lines += [] if session is None else [f"X-Session-Id: {session}", f"X-Supersede: {session}"]
    lines += [] if parent is None else [f"X-Parent-Session-Id: {parent}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def ask(port: int, path: str, body: Mapping[str, Any] | None = None, **options: str | None) -> Reply:
    """Send a request on a connection of its own and read the whole answer."""
    with Wire(port) as wire:
        wire.send(request_bytes(path, body, **options))
        return wire.read()
