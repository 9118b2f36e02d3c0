"""Requests to a model's process over its Unix socket: one connection for each, so that closing it cancels exactly one
request.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Headers = list[tuple[bytes, bytes]]

READ_AT_ONCE = 1 << 14  # bytes; what is not read fills the socket, so the process notices a client that does not read
MAX_HEAD = 1 << 16
MAX_LINE = 64  # bytes of the line before a chunk
END = b"\r\n\r\n"


class Broken(Exception):  # noqa: N818 - reads as the event it is
    """The process closed the connection before its answer was complete."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an answer."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")


class Exchange:
    """One request to a process, and its answer. Used in the event loop only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._rest = b""
        self._head: Head | None = None
        self._has_body = True

    @classmethod
    async def begin(
        cls, path: Path, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> Exchange:
        """Connect, and send the request; OSError if nobody listens."""
        if sys.platform == "win32":
            raise NotImplementedError("Unix sockets are not there")
        reader, writer = await asyncio.open_unix_connection(path, limit=READ_AT_ONCE)
        lines = [method.encode() + b" " + target + b" HTTP/1.1", b"connection: close"]
        lines += [name + b": " + value for name, value in headers]
        lines.append(b"content-length: %d" % len(body))
        writer.write(b"\r\n".join(lines) + END + body)
        exchange = cls(reader, writer)
        exchange._has_body = method != "HEAD"
        return exchange

    def close(self) -> None:
        """Close the connection at once, which cancels the request. Idempotent."""
        self._writer.transport.abort()

    async def head(self) -> Head:
        """Return the beginning of the answer; Broken if there is none."""
        data = bytearray()
        while (end := data.find(END)) < 0:
            piece = await self._read()
            data += piece
            if not piece or len(data) > MAX_HEAD:
                raise Broken
        self._rest = bytes(data[end + len(END) :])
        first, *lines = bytes(data[:end]).split(b"\r\n")
        headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        self._head = Head(int(first.split(b" ", 2)[1]), headers)
        return self._head

    async def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it comes; Broken if it is not complete."""
        assert self._head is not None
        if not self._has_body or self._head.status in (204, 304):
            return
        decoder = Chunks() if self._head.get(b"transfer-encoding") == b"chunked" else None
        left = int(self._head.get(b"content-length") or 0)
        data, self._rest = self._rest, b""
        while True:
            if decoder is not None:
                piece = decoder.feed(data)
                done = decoder.done
            else:
                left -= len(data)
                piece, done = data, left <= 0
            if piece:
                yield piece
            if done:
                return
            data = await self._read()
            if not data:
                raise Broken

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(READ_AT_ONCE)
        except OSError:
            return b""


class Chunks:
    """Decodes the chunks of a body."""

    def __init__(self) -> None:
        self.done = False
        self._data = bytearray()
        self._left = 0  # bytes of the current chunk, its line end included

    def feed(self, data: bytes) -> bytes:
        """Return the content in these bytes; ValueError if they are not chunks."""
        self._data += data
        found = bytearray()
        while self._data and not self.done:
            if not self._left:
                end = self._data.find(b"\r\n")
                if end < 0:
                    if len(self._data) > MAX_LINE:
                        raise ValueError("not a chunk")
                    break
                self._left = int(self._data[:end].partition(b";")[0], 16) + 2
                self.done = self._left == 2
                del self._data[: end + 2]
                continue
            part = self._data[: self._left]
            del self._data[: len(part)]
            if len(part) < self._left:
                self._left -= len(part)
                found += part[: max(0, len(part) + min(0, self._left - 2))]
            else:
                found += part[: max(0, len(part) - 2)]
                self._left = 0
        return bytes(found)


async def ask(
    path: Path, target: bytes, headers: Iterable[tuple[bytes, bytes]] = (), seconds: float = 5.0
) -> tuple[Head, bytes]:
    """Return the answer to a GET; Broken, OSError or TimeoutError if there is none."""
    async with asyncio.timeout(seconds):
        exchange = await Exchange.begin(path, "GET", target, [(b"host", b"localhost"), *headers], b"")
        try:
            return await exchange.head(), await exchange.whole()
        finally:
            with suppress(OSError):
                exchange.close()
