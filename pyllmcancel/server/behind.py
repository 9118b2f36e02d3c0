"""A server behind a front: it reports what becomes of a request to the front, in one stream with the request's answer.

The front names a request's link by the header `LINK`. After the head of a plain 200 this server writes frames, until
the front closes the connection. Frames of the answer itself (its start, its body, its end) come between frames that say
how far the request is. One frame says how the request ended, so the front knows the ending exactly when its computation
has stopped: at once if it was cancelled, after the answer if the request outlives the answer, else before its end. A
frame is a byte that names its kind, the length of its content as four bytes, and the content.

The front writes commands after its request, each a line: the reason of a cancel, or that an idle request waits or goes
on. If the front closes the connection before the end, its request is cancelled, as any client's.

A request whose answer was begun by another server comes with what was delivered (see `pyllmcancel.server.delivered`),
before its body: the header of the link says how many bytes describe that, mostly none. The header
`AGAIN` says that another server has accepted the request before, or this one before it was started again: what is
stored under its id is its own.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.delivered import Delivered, Marks, Promise
from pyllmcancel.server.digests import prompt_digest
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.connection import connection_of, watched
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.workers import post

if TYPE_CHECKING:
    from concurrent.futures import Future

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.events import Delta, Ending
    from pyllmcancel.requests.request import Request
    from pyllmcancel.server.http.connection import Connection

LINK = b"x-front-link"
AGAIN = b"x-front-again"
OPENED = b"HTTP/1.1 200 OK\r\n" + LINK + b": 1\r\n\r\n"
HEAD = struct.Struct("!cI")
ACCEPTED, STATE, START, MARK, BODY, END, ENDED, CLOSED = b"A", b"P", b"S", b"T", b"B", b"F", b"E", b"C"
"""The kinds: the request was accepted, how far it is, the answer's start, a mark, a piece, the end, the request's
ending, and the end of the frames, for an answer that has none.
"""
# The commands that are no reasons of a cancel: an idle request waits for foreground ones, or goes on.
WAIT, GO = b"wait", b"go"
DOES_NOT_GO_ON = 409  # the status for an answer that another server began, and this one would not continue alike
STATE_SECONDS = 0.1  # between two looks at how far a request is
LENGTH = b"content-length"


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(content)) + content


class WorkerLink:
    """The link of one HTTP request. Used in the event loop only."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        connection: Connection,
        engine: Callable[[], Engine],
        delivered: Delivered | None,
    ) -> None:
        self._exchange = exchange_of(scope)
        self.delivered = delivered  # by another server
        self.is_again = any(name == AGAIN for name, _ in scope["headers"])
        self._marks = Marks(delivered)
        self._receive = receive
        self._connection = connection
        self._engine = engine
        self._request: Request | None = None
        self._promise: Promise | None = None
        self._is_promised = False
        self._last_state: tuple[Any, ...] = ()
        self._has_tokens = False  # of the answer, among the frames
        self._tells_of_tokens = False  # after the next piece, which has the first ones
        self._is_complete = False  # the answer is among the frames, with its end
        self._has_ending = False  # the request's ending is among them
        self._owed = OPENED  # what comes before the next frame
        self._n_commands = 0
        self._is_given_up = False  # the request is cancelled, and the application is to learn that its client has left
        connection.on_ahead = self._read_commands
        if connection.ahead:
            asyncio.get_running_loop().call_soon(self._read_commands)  # the request is listed by then

    # -- the front's commands -----------------------------------------------------------------------------------------

    def _read_commands(self) -> None:
        commands = self._connection.ahead.split(b"\n")[self._n_commands : -1]
        self._n_commands += len(commands)
        for command in commands:
            request = self._request or self._exchange.request
            if command in (WAIT, GO):
                if request is not None:
                    request.held_by_front = command == WAIT
                    self._engine().registry.wake()
                continue
            reason = CancelReason(command.decode())
            if request is not None:
                self._engine().cancel(request, reason)
            if request is None or reason in (CancelReason.DISCONNECT, CancelReason.STALLED):
                self._is_given_up = True
                self._connection.wake()

    async def receive(self) -> Message:
        """Receive what the application receives: the body, and that the client has left."""
        message = None if self._is_given_up else await self._receive()
        if message is None or self._is_given_up:
            return {"type": "http.disconnect"}
        return message

    # -- the frames ---------------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> None:
        """Send a part of the answer: what the application sends."""
        if message["type"] == "http.response.start":
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            self._write_soon(frame(START, as_json([message["status"], headers])))
            return
        data = message.get("body", b"")
        frames = frame(BODY, data) if data else b""
        if not message.get("more_body", False):
            self._is_complete = True
            frames += self._ending() + frame(END)
        if self._tells_of_tokens and self._request is not None and not self._request.ended.done():
            # Now: a front whose client does not read may read no further, and would not know that the answer has begun.
            frames += self._news_of(self._request)
            self._tells_of_tokens = False
        self._write(frames)
        if not self._connection.keeps_up:
            await self._connection.drain()

    def go_on(self, request: Request, server: str | None) -> None:
        """Have a request begin with the tokens that were delivered; ApiError if it would not go on as it began.

        `server` is this server's `server_digest`.
        """
        seed = request.params.sampling.seed
        promise = self._promise = Promise(server, prompt_digest(request), seed, self._exchange.created_at)
        if self.delivered is not None and self.delivered.promise is not None:
            if self.delivered.promise != promise:
                raise ApiError(DOES_NOT_GO_ON, "this answer was begun by a server unlike this one", code="conflict")
            for choice in request.choices:
                choice.known = self.delivered.known(choice.index)

    def accept(self, request: Request) -> None:
        """Have the engine accept a request, and report it at once, since others are superseded."""
        self._engine().accept(request, again=self.is_again)
        self._request = request
        self._is_promised = self._promise is not None and self._promise.server is not None
        names = request.session, request.parent, request.supersede, request.priority
        size = request.n_prompt_tokens, len(request.choices), request.params.max_tokens
        self._write_soon(frame(ACCEPTED, as_json([names, size, request.adapters, self._promise])))
        loop = asyncio.get_running_loop()
        request.ended.add_done_callback(partial(self._ended, request, loop))
        loop.call_later(STATE_SECONDS, self._send_state, request)

    def _ended(self, request: Request, loop: asyncio.AbstractEventLoop, _: Future[Ending]) -> None:
        """Have the ending of a cancelled request sent, from any thread: the application's answer takes longer."""
        if request.cancellation.requested:
            post(loop, lambda: self._write(self._ending()))

    def is_new(self, delta: Delta) -> bool:
        """Return whether a delta, the next one of its choice, has not been delivered."""
        return not self._is_promised or self._marks.is_new(delta)

    def marked(self, part: int, text: bytes, new: Sequence[Delta] = ()) -> bytes:
        """Return the text of some events, which are of these deltas, or nothing if its client has it. Its mark is
        sent before it, if another server could go on with the answer.
        """
        if self._is_promised:
            text = b"" if self._marks.has(part) else text
            self._owed += frame(MARK, self._marks.mark(part, len(text), new))
        if not self._has_tokens and any(delta.prompt_done is None for delta in new):
            self._has_tokens = self._tells_of_tokens = True
        return text

    def _send_state(self, request: Request) -> None:
        """Send how far the request is, again and again until it ends, to a front that does not lag."""
        if request.ended.done():
            return
        asyncio.get_running_loop().call_later(STATE_SECONDS, self._send_state, request)
        if self._connection.keeps_up:
            self._write(self._news_of(request))

    def _news_of(self, request: Request) -> bytes:
        """Return the frame of how far the request is, if that has changed, or the front waits for its end."""
        state = self._state_of(request)
        if state == self._last_state and not request.cancellation.requested:
            return b""
        self._last_state = state
        return frame(STATE, as_json(state))

    def _state_of(self, request: Request) -> tuple[Any, ...]:
        """Return the fields of a request's entry that change while it lives."""
        seen = request.summary()
        done = seen.prompt_tokens_done, seen.cached_tokens, seen.completion_tokens
        times = seen.times.admitted, seen.times.first_token
        ahead = self._engine().ahead_of(request)
        if ahead is not None and ahead.seconds is not None:
            ahead = ahead._replace(seconds=round(ahead.seconds))  # so that it seldom changes
        return str(seen.status), list(seen.slots), seen.paused, times, *done, [*seen.drafts], ahead

    async def close(self) -> None:
        """Send how the request ended, as soon as it has, and wait for the front to close the link. A request whose
        answer is complete may go on, until the front does so.
        """
        request = self._request
        if request is not None and not request.ended.done():
            ended = asyncio.wrap_future(request.ended)
            with watched(self._receive, partial(self._engine().cancel, request, CancelReason.DISCONNECT)):
                await asyncio.shield(ended)
        self._write(self._ending() + (b"" if self._is_complete else frame(CLOSED)))
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def _ending(self) -> bytes:
        """Return the frame of the request's ending, once. It comes before the answer's end: clients know no sooner."""
        request = self._request
        if request is None or self._has_ending or not request.ended.done():
            return b""
        self._has_ending = True
        ending = request.ended.result()
        told = {
            "state": self._state_of(request),
            "phase": ending.phase,
            "finish_reason": ending.finish_reason,
            "limit": ending.limit,
            "reason": ending.cancel_reason,
            "deadline": request.cancellation.deadline,
            "retry_after": request.retry_after,
            "superseded_by": request.superseded_by,
            "error": ending.error,
            "param": ending.param,
        }
        return frame(ENDED, as_json(told))

    def _write_soon(self, data: bytes) -> None:
        """Write with what else is written in this turn of the event loop."""
        self._owed += data
        asyncio.get_running_loop().call_soon(self._write, b"")

    def _write(self, data: bytes) -> None:
        owed, self._owed = self._owed + data, b""
        if owed:
            self._connection.write(owed)


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class FrontLinks:
    """Has a server behind a front answer its requests by frames."""

    def __init__(self, app: ASGIApp, engine: Callable[[], Engine]) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = next((value for name, value in scope.get("headers", ()) if name == LINK), b"")
        connection = connection_of(scope) if size else None
        if connection is None:
            await self._app(scope, receive, send)
            return
        try:
            delivered, receive = await delivered_before(scope, receive, int(size))
        except ClientDisconnect:
            return
        exchange = exchange_of(scope)
        link = exchange.link = WorkerLink(scope, receive, connection, self._engine, delivered)
        if delivered is not None and delivered.promise is not None:
            exchange.created_at = delivered.promise.created_at
        try:
            await self._app(scope, link.receive, link.send)
            await link.close()
        except BaseException:
            connection.drop()
            raise


async def delivered_before(scope: Scope, receive: Receive, n_before: int) -> tuple[Delivered | None, Receive]:
    """Read the bytes that tell what was delivered; return that, and the function that receives the rest of the body."""
    if not n_before:
        return None, receive
    read, message = bytearray(), dict[str, Any](more_body=True)
    while len(read) < n_before and message.get("more_body", False):
        message = dict(await receive())
        read += message.get("body", b"")
    if len(read) < n_before:
        raise ClientDisconnect
    lengths = [(LENGTH, b"%d" % (int(value) - n_before)) for name, value in scope["headers"] if name == LENGTH]
    scope["headers"] = [pair for pair in scope["headers"] if pair[0] != LENGTH] + lengths
    rest = [message | {"body": bytes(read[n_before:])}]

    async def receive_rest() -> Message:
        return rest.pop() if rest else await receive()

    return Delivered.read(bytes(read[:n_before])), receive_rest
