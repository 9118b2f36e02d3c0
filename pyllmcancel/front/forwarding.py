"""A request on its way to a model's process, and its answer on the way back. Plain ASGI.

What computes is followed by a `Relay`; other requests are exchanged by `everywhere`. Only the latter's connections are
closed when their clients leave.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

from pyllmcancel.front.requests import BAD
from pyllmcancel.front.upstream import Head, WorkerConnection
from pyllmcancel.requests.token_stream import Stream
from pyllmcancel.server.behind import DOES_NOT_GO_ON
from pyllmcancel.server.delivered import Delivered
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.errors.shapes import ANTHROPIC, shape_of
from pyllmcancel.server.from_front import FORWARDED, INTERNAL, owner_header
from pyllmcancel.server.http.connection import connection_of
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.requests.visible import may_see_all
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.server.streams.reading import KeptResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Scope, Send

    from pyllmcancel.front.link import FrontLink
    from pyllmcancel.front.requests import FrontRequest, FrontRequests
    from pyllmcancel.front.upstream import Address, Headers
    from pyllmcancel.server.answer_events import ErrorForReader, Write
    from pyllmcancel.server.streams.kept_answers import KeptAnswers

# Headers that belong to one connection (RFC 9110, 7.6.1).
OF_CONNECTION = frozenset(
    {
        *(b"connection", b"keep-alive", b"te", b"trailer"),  # codespell:ignore te
        *(b"transfer-encoding", b"upgrade", b"proxy-connection"),
    }
)
OF_REQUEST = OF_CONNECTION | {
    *(b"content-length", b"expect", b"x-request-id", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"),
    *INTERNAL,  # only this process may send them
    *(b"authorization", b"x-api-key"),  # checked here; the worker gets the name of their owner
    # A page was let in, or not, before; the process would ask whether it is its own.
    *(b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"),
}
OF_ANSWER = OF_CONNECTION | {b"date"}
BLANK = b"\n\n"  # the end of an event
STREAM = b"text/event-stream"


class Lost(Exception):  # noqa: N818 - reads as the event it is
    """The process does not listen, or has ended, or is stuck; another one can take the request, or go on with it."""


@dataclass(slots=True)
class ForwardedRequest:
    """A request as its process gets it."""

    method: str
    target: bytes
    headers: Headers
    body: bytes
    # The body is kept for as long as the request lives, since another process may get it; else it is dropped when it
    # is sent, for answers may take long.
    is_kept: bool = True

    @classmethod
    def of(cls, scope: Scope, body: bytes) -> ForwardedRequest:
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope.get("query_string", b"")
        kept = [(name, value) for name, value in scope["headers"] if name not in OF_REQUEST]
        kept.append((b"x-request-id", exchange_of(scope).request_id.encode()))
        kept.append(owner_header(scope, sees_all=may_see_all(Request(scope))))
        client = scope.get("client")
        if client is not None:
            kept.append((FORWARDED, str(client[0]).encode("latin-1")))
        return cls(scope["method"], path + (b"?" + query if query else b""), kept, body)

    async def begin(self, address: Address) -> WorkerConnection:
        """Send the request; OSError if that is impossible."""
        return await WorkerConnection.begin(address, self.method, self.target, self.headers, self.body)


class ClientAnswer:
    """An answer on its way to the client, who may have left.

    A stream's pieces go to the client's connection as soon as they come, in the callback that has read them: see
    `FrontLink`. Only when the client does not keep up is there something to wait for.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.head: Head | None = None  # set when the answer has begun
        self.complete = False  # nothing more is written
        self.send = send
        self._connection = connection_of(scope)
        self._last = BLANK

    def redirect(self, send: Send) -> None:
        """Have the rest of the answer sent elsewhere."""
        self.send, self._connection = send, None

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin the answer; ApiError, and nothing is sent, if it is a stream to keep and too many are kept."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        self.head = Head(status, headers)

    @property
    def is_chunked(self) -> bool:
        """True if the HTTP server sends the answer in chunks, past which pieces can be written."""
        assert self.head is not None
        has_length = bool(self.head.get(b"content-length"))
        return self._connection is not None and not has_length and self.scope["http_version"] == "1.1"

    def pass_on(self, piece: bytes) -> bool:
        """Write a piece of a chunked answer now; return whether the client keeps up."""
        self._last = piece
        return self._connection is None or self._connection.write_chunk(piece)

    async def write(self, piece: bytes) -> None:
        """Write a piece; an empty one waits for a client that does not keep up."""
        self._last = piece or self._last
        # The HTTP server learns later than its transport that the connection has failed.
        if self._connection is None or not self._connection.is_closing:
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        self.complete = True
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def break_off(self, error: Exception) -> None:
        """End an answer that has begun, so that nobody takes it for a complete one."""
        assert self.head is not None
        self.complete = True
        if is_stream(self.head.headers):
            shape = shape_of(self.scope)
            told = json.dumps(shape.word(api_error(error), exchange_of(self.scope).request_id))
            between = b"" if self._last.endswith(BLANK) else BLANK  # ends an event that is cut
            event = ("event: error\n" if shape is ANTHROPIC else "") + f"data: {told}\n\n"
            await self.send({"type": "http.response.body", "body": between + event.encode(), "more_body": False})
            return
        if self._connection is not None:
            self._connection.drop()
        exchange_of(self.scope).client_gone = True


class RelayedAnswer(ClientAnswer):
    """The answer to a request that may move to another process. What must not come too early is held back."""

    def __init__(self, scope: Scope, send: Send, request: FrontRequest) -> None:
        super().__init__(scope, send)
        self.delivered = Delivered()  # what the client has got, so that another process can go on
        self.came_too_late = False  # the cancel: the process had completed the answer
        self._request = request
        self._status, self._headers = 200, list[tuple[bytes, bytes]]()  # what the process began with
        self.held: list[bytes] = []  # not to be delivered before the answer's end is known

    async def begin_as(self, link: FrontLink, status: int, headers: Headers, extra: Headers) -> None:
        """Begin a stream. What comes in one piece is held until its end, so that another process can begin anew.

        Lost if the process does not go on with an answer of which nothing was delivered: one is to begin it. ApiError
        if it does not go on with an answer that another one has begun; RequestCancelled if that is cancelled.
        """
        is_refused = status == DOES_NOT_GO_ON and self.delivered.promise is not None
        if is_refused and not self.delivered.n_bytes:
            self.delivered.forget()
            raise Lost
        if self.complete and status < BAD:  # of a response in the background, which moved
            return
        if is_refused or (self.head is not None and not is_stream(headers)):
            raise self._request.cancel_error() if self._request.cancellation.requested else process_ended()
        self._status, self._headers = status, [*kept(headers), *extra]
        if self._request.cancellation.requested or not is_stream(headers):
            return
        if self.head is None:
            await self.begin(status, self._headers)
        if self.is_chunked and not self._request.cancellation.requested:
            link.pass_on = self.pass_on

    async def deliver(self, piece: bytes) -> None:
        """Deliver a piece, or hold it; an empty one waits for a client that does not keep up."""
        if self.complete:
            return
        if self._request.cancellation.requested or self.head is None:
            self.held.append(piece)
            return
        sound, error = self.delivered.without_failure(piece)
        self.held += [error] if error else []
        try:
            await self.write(sound)
        except asyncio.CancelledError:  # it waited for its client, and was not written
            self.held.insert(0, sound)
            raise
        self.delivered.add(sound)

    async def finish(self) -> None:
        """End the answer: a cancelled one never looks complete. RequestCancelled if the client has no answer yet."""
        if self.complete:
            return
        if self._request.cancellation.requested and (self.head is None or self.came_too_late):
            await self.give_up(self._request.cancel_error())
            return
        if self.head is None:
            await self.begin(self._status, self._headers)
        await self.write(b"".join(self.held))
        await self.end()

    async def give_up(self, error: Exception) -> None:
        """End the answer with an error; raise it if the answer has not begun."""
        if self.head is None:
            raise error
        if not self.complete:
            await self.break_off(error)


class KeptSend:
    """The ``send`` of an answer that is kept if it is a stream, for its client to read. Used by its relay's task."""

    def __init__(
        self,
        request: FrontRequest,
        requests: FrontRequests,
        streams: KeptAnswers[KeptAnswer],
        answer: ClientAnswer,
        on_begun: Callable[[], object],
    ) -> None:
        assert request.keeping is not None
        streams.make_room(request.owner, request.keeping.name)
        self.names_events = shape_of(answer.scope) is ANTHROPIC or "/responses" in answer.scope["path"]
        self.kept = KeptAnswer(request.keeping, Stream(request, requests), self)  # its events are what is sent
        # The client's reading of it; None if it has not begun, or is no stream and goes to the client.
        self.response: KeptResponse | None = None
        self._streams = streams
        self._send = answer.send
        self._on_begun = on_begun
        self._task = asyncio.current_task()

    async def __call__(self, message: Message) -> None:
        if self.response is not None:
            if message["body"]:
                self.kept.log.write(message["body"])
        elif message["type"] == "http.response.start" and is_stream(message["headers"]):
            self._streams.begin(self.kept)
            self.response = KeptResponse(self.kept, headers=message["headers"])
            self._on_begun()
        else:
            await self._send(message)

    # -- as `AnswerEvents` --------------------------------------------------------------------------------------------

    async def write_to(self, _write: Write, _error_for_reader: ErrorForReader) -> bool:
        """Wait until the task, which writes them, has ended."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return True

    async def break_off(self, write: Write | None, error: Exception) -> None:
        """The task has done so."""


def is_stream(headers: Headers) -> bool:
    """Return whether an answer with these headers is server-sent events."""
    return any(name == b"content-type" and value.startswith(STREAM) for name, value in headers)


def kept(headers: Headers) -> Headers:
    """Return the headers of an answer that are not of its connection."""
    return [(name, value) for name, value in headers if name not in OF_ANSWER]


def process_ended() -> ApiError:
    return ApiError(503, "the model's process ended", "server_error", code="model_ended")
