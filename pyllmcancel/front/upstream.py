"""Requests to a worker: one connection for each, so that closing it cancels exactly one request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Self, cast

import h11

Headers = list[tuple[bytes, bytes]]
HEADERS = [(b"content-type", b"application/json"), (b"host", b"localhost")]

READ_AT_ONCE = 1 << 14  # bytes; what is not read fills the socket, so the process notices a client that does not read
MAX_HEAD = 1 << 16
BACKLOG_SECONDS, BACKLOG_PAUSE = 10.0, 0.01  # for a full backlog, and between two tries
CONNECT_SECONDS = 2.0
DEADLINE_SECONDS = 2.0  # for an answer; a worker that does not answer then is stuck
# Seconds of silence, seconds between two tries, tries, and milliseconds in which what was sent has to arrive.
KEEPALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens: at a Unix socket, or at a host, which is an address, and a port."""

    key: str  # which every request to it has to carry
    path: Path | None = None  # its Unix socket
    host: str = ""
    port: int = 0
    tls: SSLContext | None = None  # what its certificate is checked by; None: it is not encrypted
    name: str = ""  # which must be in the certificate


class Broken(Exception):  # noqa: N818 - reads as the event it is
    """The process closed the connection before its answer was complete."""


class Unread(Broken):
    """The process closed the connection before it had read the whole request: so it has computed nothing of it.

    The kernel says so: a socket that is closed with unread bytes, or was never accepted, resets its connection.
    """


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of an answer."""

    status: int
    headers: Headers

    def get(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key == name), b"")


class WorkerConnection(asyncio.Protocol):
    """One request to a process, and its answer. Used in the event loop only.

    Nothing is read while nobody waits for it, so the process notices a client that does not read.
    """

    def __init__(self, *, has_body: bool) -> None:
        self._transport: asyncio.Transport  # set when the connection is made
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._has_body = has_body
        self._is_closed = False
        self._was_reset = False
        self._news = asyncio.Event()  # set when something has come, or the connection is closed

    @classmethod
    async def begin(
        cls, address: Address, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> Self:
        """Connect, and send the request; OSError if nobody listens, or too many others wait to be accepted for long."""
        lines = [method.encode() + b" " + target + b" HTTP/1.1", b"x-worker-key: " + address.key.encode()]
        lines += [name + b": " + value for name, value in headers]
        lines.append(b"content-length: %d" % len(body))
        exchange, data = cls(has_body=method != "HEAD"), b"\r\n".join(lines) + END + body
        await (to_host if address.path is None else to_socket)(address, exchange, data)
        return exchange

    def close(self) -> None:
        """Close the connection at once, which cancels the request. Idempotent."""
        self._transport.abort()

    def write(self, data: bytes) -> None:
        """Write something after the request."""
        if not self._transport.is_closing():
            self._transport.write(data)

    # -- what asyncio calls -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        with suppress(AttributeError):  # asyncio's own transports of sockets have it
            transport.max_size = READ_AT_ONCE  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed, self._was_reset = True, isinstance(exc, ConnectionError)
        self._news.set()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def head(self) -> Head:
        """Return the beginning of the answer; Broken if there is none, Unread if there will be none."""
        while not isinstance(event := self._event(), h11.Response):
            if self._is_closed:
                raise Unread if self._was_reset and not self._http.trailing_data[0] else Broken
            await self._next()
        return Head(event.status_code, list(event.headers))

    async def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the body; Broken if it is incomplete, invalid, or of unknown length."""
        while self._has_body and not isinstance(event := self._event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif self._is_closed:
                raise Broken
            else:
                await self._next()

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    def _event(self) -> object:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise Broken(str(error)) from None

    def _wake(self) -> None:
        """Stop reading, and wake the task that waits."""
        self._transport.pause_reading()
        self._news.set()

    async def _next(self) -> None:
        """Wait until something has come, or the connection is closed."""
        self._news.clear()
        self._transport.resume_reading()
        await self._news.wait()


async def to_socket(address: Address, exchange: WorkerConnection, data: bytes) -> None:
    """Connect to a Unix socket, and send; OSError if nobody listens."""
    connection, loop = socket.socket(socket.AF_UNIX), asyncio.get_running_loop()
    try:
        connection.setblocking(False)
        assert address.path is not None
        await connect(connection, address.path, loop)
        # Before asyncio's own work for a connection: the process begins while that is done.
        n_sent = connection.send(data)
        await loop.create_unix_connection(lambda: exchange, sock=connection)
    except BaseException:
        connection.close()
        raise
    if n_sent < len(data):
        exchange.write(data[n_sent:])


async def to_host(address: Address, exchange: WorkerConnection, data: bytes) -> None:
    """Connect to another machine, and send; ConnectionError if it cannot be reached."""
    name = address.name if address.tls is not None else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: exchange, address.host, address.port, ssl=address.tls, server_hostname=name
            )
    except OSError as error:
        raise ConnectionError(str(error) or f"no connection in {CONNECT_SECONDS:g} s") from error
    keep_looking(transport.get_extra_info("socket"))
    exchange.write(data)


def keep_looking(connection: socket.socket) -> None:
    """Have the kernel close the connection soon after the other machine has gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


async def connect(connection: socket.socket, path: Path, loop: asyncio.AbstractEventLoop) -> None:
    """Connect; a full backlog gets some time. The kernel has no event for the moment in which it has room again."""
    until = loop.time() + BACKLOG_SECONDS
    while True:
        try:
            connection.connect(str(path))
        except BlockingIOError:
            if loop.time() > until:
                raise
            await asyncio.sleep(BACKLOG_PAUSE)
        else:
            return


async def ask(address: Address, target: str, body: bytes = b"", *, seconds: float = 5.0) -> tuple[Head, bytes]:
    """Return the whole answer to a GET, or to a POST of a body; Broken, OSError or TimeoutError if there is none."""
    method = "POST" if body else "GET"
    async with asyncio.timeout(seconds):
        return await whole_of(await WorkerConnection.begin(address, method, target.encode(), HEADERS, body))


async def whole_of(exchange: WorkerConnection) -> tuple[Head, bytes]:
    """Return the whole answer, and close the connection."""
    with closing(exchange):
        return await exchange.head(), await exchange.whole()
