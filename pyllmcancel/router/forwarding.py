"""A request on its way to a model's process, and its answer on the way back. Plain ASGI.

A client that leaves has its connection to the process closed in the same moment, which is how the process learns of a
cancel. While the model loads, the request waits here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyllmcancel.router.upstream import Broken, Exchange, Head, Unread
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.errors.shapes import ANTHROPIC, shape_of
from pyllmcancel.server.http.connection import connection_of, watched
from pyllmcancel.server.http.request_context import ARRIVED, arrival_told, mark_client_gone, request_id_of
from pyllmcancel.server.limits import SMALL_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

# Headers that belong to one connection (RFC 9110, 7.6.1).
OF_CONNECTION = frozenset(
    {
        *(b"connection", b"keep-alive", b"te", b"trailer"),  # codespell:ignore te
        *(b"transfer-encoding", b"upgrade", b"proxy-connection"),
    }
)
OF_REQUEST = OF_CONNECTION | {
    *(b"content-length", b"expect", b"x-request-id", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    ARRIVED,  # only this process may say it
    # A page was let in, or not, before; the process would ask whether it is its own.
    *(b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"),
}
OF_ANSWER = OF_CONNECTION | {b"date"}
BLANK = b"\n\n"  # the end of an event
STREAM = b"text/event-stream"


class ClientLeft(Exception):  # noqa: N818 - reads as the event it is
    """The client closed its connection."""


class NotReached(Exception):  # noqa: N818
    """The process does not listen."""


class SendAgain(Exception):  # noqa: N818
    """The process closed the connection before it had read the request."""


@dataclass(slots=True)
class Message:
    """A request as its process gets it. The body is dropped when it is sent, or answered if it is small: answers may
    take long.
    """

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> Message:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        kept = [(name, value) for name, value in scope["headers"] if name not in OF_REQUEST]
        kept.append((b"x-request-id", request_id_of(scope).encode()))
        client = scope.get("client")
        if client is not None:
            kept.append((b"x-forwarded-for", str(client[0]).encode("latin-1")))
        return cls(scope["method"], path + (b"?" + query if query else b""), kept, body)


async def read_body(receive: Receive) -> bytes:
    """Return the body; ClientLeft if its client leaves before its end."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


class Leaving:
    """The leaving of one request's client, which ends what is awaited inside `heard`.

    Attributes
    ----------
    keeps
        The seconds for which the request waits for its model without its client, whose stream can be taken up again; 0
        if it does not. Within them the leaving only closes the connection to the process, as soon as the process has
        accepted the request.
    on_answer
        Called when the process begins to answer.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.keeps = 0.0
        self.on_answer: Callable[[], None] = lambda: None
        self._receive = receive
        self._exchange: Exchange | None = None
        self._future: asyncio.Future[Any] | None = None
        self.left_at: float | None = None  # in monotonic seconds
        self._gives_up: asyncio.TimerHandle | None = None

    @property
    def left(self) -> bool:
        return self.left_at is not None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Inside the block, ClientLeft is raised by `until` when the client leaves."""
        try:
            with watched(self._receive, self._note):
                yield
        finally:
            if self._gives_up is not None:
                self._gives_up.cancel()

    def keep(self, seconds: float) -> None:
        """Let the request wait for its model without its client, for so long after the leaving."""
        self.keeps = seconds
        if self.left_at is not None and seconds:
            left_for = time.monotonic() - self.left_at
            self._gives_up = asyncio.get_running_loop().call_later(seconds - left_for, self._give_up)

    def _note(self) -> None:
        self.left_at = time.monotonic()
        if self._exchange is not None and not (self.keeps and self._exchange.is_new):
            self._exchange.close()
        self.keep(self.keeps)
        self._end_wait()

    def _give_up(self) -> None:
        self.keeps = 0.0
        if self._exchange is not None:
            self._exchange.close()  # the process has not begun to answer
        self._end_wait()

    def _end_wait(self) -> None:
        if self._future is not None and not self._future.done() and not self.keeps:
            self._future.set_exception(ClientLeft())

    async def until(self, future: asyncio.Future[Any]) -> Any:
        self._future = future
        if self.left and not self.keeps:
            raise ClientLeft
        return await future

    @contextmanager
    def closes(self, exchange: Exchange) -> Iterator[None]:
        """Inside the block, the client's leaving closes the exchange; the end of the block does in any case."""
        self._exchange = exchange
        try:
            if self.left and not self.keeps:
                raise ClientLeft
            yield
        finally:
            self._exchange = None
            exchange.close()


async def exchange(
    message: Message, socket: Path, leaving: Leaving, send: Send, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send the request to the process, and its answer to the client, piece by piece.

    Raises
    ------
    NotReached
        The process has ended, or is about to; it has seen nothing of the request.
    SendAgain
        It closed the connection before it had read the request, whose body is still here.
    ApiError
        The process ended before it answered, or this one may open no more connections.
    ClientLeft
    """
    headers = [*message.headers, (ARRIVED, arrival_told(leaving.scope, leaving.left_at))]
    try:
        begun = await Exchange.begin(socket, message.method, message.target, headers, message.body)
    except (ConnectionError, FileNotFoundError):
        raise NotReached from None
    except OSError as error:
        raise ApiError(
            503, f"no connection to the model: {error.strerror}", "server_error", code="overloaded"
        ) from error
    is_kept = len(message.body) <= SMALL_BODY
    if not is_kept:
        message.body = b""
    with leaving.closes(begun):
        head, body = None, Body(leaving.scope, send)
        try:
            head = await begun.head()
            message.body = b""
            leaving.on_answer()
            if leaving.left:
                raise ClientLeft
            kept = [(name, value) for name, value in head.headers if name not in OF_ANSWER]
            await send({"type": "http.response.start", "status": head.status, "headers": [*kept, *extra]})
            await body.flow(begun, head)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (Broken, ValueError) as error:
            again = head is None and is_kept and isinstance(error, Unread)
            if leaving.left and not (again and leaving.keeps):
                raise ClientLeft from None
            if head is None:
                raise (SendAgain if again else process_ended()) from None
            await break_off(head, leaving.scope, send, b"" if body.last.endswith(BLANK) else BLANK)


class Body:
    """The body of an answer, on its way to the client.

    A stream's pieces go to the client's connection as soon as they come, in the callback that has read them: see
    `Exchange`. Only when the client does not keep up is there something to wait for.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.last = BLANK

    async def flow(self, upstream: Exchange, head: Head) -> None:
        """Send what comes; Broken or ValueError if it is not a complete body."""
        connection = connection_of(self._scope)
        # The HTTP server sends chunks exactly if these hold.
        if connection is None or not head.is_chunked or self._scope["http_version"] != "1.1":
            async for piece in upstream.pieces():
                await self.write(piece)
            return

        def write(piece: bytes) -> bool:
            self.last = piece
            return connection.write_chunk(piece)

        while not await upstream.flow(write):
            await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def write(self, piece: bytes) -> None:
        self.last = piece
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})


async def break_off(head: Head, scope: Scope, send: Send, between: bytes) -> None:
    """End an answer that the process left incomplete, so that nobody takes it for a complete one.

    Parameters
    ----------
    between
        What ends the stream's last event, if that is cut.
    """
    if head.get(b"content-type").startswith(STREAM):
        shape = shape_of(scope)
        told = json.dumps(shape.word(process_ended(), request_id_of(scope)))
        event = ("event: error\n" if shape is ANTHROPIC else "") + f"data: {told}\n\n"
        await send({"type": "http.response.body", "body": between + event.encode(), "more_body": False})
        return
    connection = connection_of(scope)
    if connection is not None:
        connection.drop()
    mark_client_gone(scope)


def process_ended() -> ApiError:
    return ApiError(503, "the model's process ended; it is started again", "server_error", code="model_ended")


async def answered(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """Answer with an error; nothing is sent to a client that has left."""
    if isinstance(error, ClientLeft):
        mark_client_gone(scope)
        return
    shown = api_error(error)
    if shown.status == 500:
        raise error
    with suppress(OSError):
        await shown.response_to(scope)(scope, receive, send)


def milliseconds_since(began: float) -> bytes:
    return b"%d" % round((time.monotonic() - began) * 1e3)
