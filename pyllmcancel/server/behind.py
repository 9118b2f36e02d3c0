"""A server behind a front: it tells the front what becomes of a request, in one stream with the request's answer.

The front names a request's link by the header `LINK`. The answer is then framed, as the body of a plain 200: frames of
the answer itself (its start, its body, its end) come between frames that say how far the request is. The last frame
says how the request ended, so the front knows the ending exactly when its computation has stopped. It comes after the
answer if the request outlives that. If the front closes the connection, its request is cancelled, as any client's.

A request whose answer was begun by another server comes with what was delivered (see `pyllmcancel.server.delivered`),
before its body: the header says how many bytes that has, those that describe it and those of the answer.

A frame is a byte that names its kind, the length of its content as four bytes, and the content.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.delivered import Delivered, Marks, Promise
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.http.connection import watched
from pyllmcancel.server.http.request_context import CREATED, created_at_of, request_id_of
from pyllmcancel.server.promise import prompt_digest

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pyllmcancel.events import Delta
    from pyllmcancel.requests.request import Request

LINK = b"x-front-link"
HEAD = struct.Struct("!cI")
ACCEPTED, STATE, START, MARK, BODY, END, ENDED = b"A", b"P", b"S", b"T", b"B", b"F", b"E"
"""The kinds: the request was accepted, how far it is, the answer's start, a mark, a piece, the end, the ending."""
DOES_NOT_GO_ON = 409  # the status for an answer that another server began, and this one would not continue alike
STATE_SECONDS = 0.1  # between two looks at how far requests are
LENGTH = b"content-length"
OPENED = ((b"content-type", b"application/octet-stream"), (LINK, b"1"))

Cancel = Callable[["Request", CancelReason], object]
Readers = Callable[["Request"], int | None]
"""Returns the number of readers of a request's stream, if it is kept; see `KeptAnswers.readers_of`."""


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(content)) + content


class Link:
    """The link of one HTTP request. Used in the event loop only."""

    def __init__(self, scope: Scope, send: Send, readers: Readers, delivered: Delivered | None) -> None:
        self.scope = scope
        self.delivered = delivered  # by another server
        self._marks = Marks(delivered)
        self._readers = readers
        self.left = False
        self._task = asyncio.current_task()
        self._send = send
        self._request: Request | None = None
        self._cancel: Cancel = lambda _request, _reason: None
        self._told: tuple[Any, ...] = ()
        self._has_told_ending = False
        self._owed = b""  # frames that come before the next one
        self._telling: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(OPENED)})
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})  # the head goes out now

    def leave(self) -> None:
        """Note that the client has left the front, as other servers do: its call is cancelled."""
        self.left = True
        if self._task is not None:
            self._task.cancel()

    def left_for_good(self) -> None:
        """Take the cancellation back: the request is followed to its end."""
        if self._task is not None:
            self._task.uncancel()
        self._task = None

    async def send(self, message: Message) -> None:
        """Send a part of the answer: what the application sends."""
        if message["type"] == "http.response.start":
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            await self._write(START, as_json([message["status"], headers]))
            return
        data = message.get("body", b"")
        if message.get("more_body", False):
            await self._write(BODY, data)
        else:
            await self._write_all((frame(BODY, data) if data else b"") + self._ending() + frame(END))

    def go_on(self, request: Request, server: str | None) -> Promise:
        """Have a request begin with the tokens that were delivered, and return what its answer depends on.

        ApiError if it would not go on as it began. `server` is this server's `server_digest`.
        """
        seed = request.params.sampling.seed
        promise = Promise(server, prompt_digest(request), seed, created_at_of(self.scope))
        if self.delivered is not None and self.delivered.promise is not None:
            if self.delivered.promise != promise:
                raise ApiError(DOES_NOT_GO_ON, "this answer was begun by a server unlike this one", code="conflict")
            for choice in request.choices:
                choice.known = self.delivered.known(choice.index)
        return promise

    def accepted(self, request: Request, cancel: Cancel, promise: Promise | None) -> None:
        """Tell of an accepted request; `cancel` ends it when the front closes the link."""
        self._request, self._cancel = request, cancel
        names = request.session, request.parent, request.supersede, request.priority
        size = request.n_prompt_tokens, len(request.choices), request.params.max_tokens
        self._owed += frame(ACCEPTED, as_json([names, size, request.adapters, promise]))
        self._telling = asyncio.create_task(self._write_all(b""))  # at once: others are superseded

    def is_new(self, delta: Delta) -> bool:
        """Return whether a delta, the next one of its choice, has not been delivered."""
        return self._marks.is_new(delta)

    def marked(self, part: int, text: bytes, new: Iterable[Delta] = ()) -> bytes:
        """Return the text of some events, which tell of these deltas, or nothing if its client has it. Its mark is
        sent before it.
        """
        text = b"" if self._marks.has(part) else text
        self._owed += frame(MARK, self._marks.mark(part, len(text), new))
        return text

    def tell_state(self) -> None:
        """Tell how far the request is, if that has changed. A front that does not read gets it later."""
        request = self._request
        if request is None or request.ended.done() or (self._telling is not None and not self._telling.done()):
            return
        state = self._state_of(request)
        if state != self._told:
            self._told = state
            self._telling = asyncio.create_task(self._write(STATE, as_json(state)))

    def _state_of(self, request: Request) -> tuple[Any, ...]:
        """Return the fields of a request's entry that change while it lives."""
        told = request.summary()
        done = told.prompt_tokens_done, told.cached_tokens, told.completion_tokens
        readers, times = self._readers(request), (told.times.admitted, told.times.first_token)
        return str(told.status), list(told.slots), told.paused, readers, times, *done, [*told.drafts]

    async def close(self, receive: Receive) -> None:
        """Tell how the request ended, as soon as it has, and end the stream. A request whose answer is complete may go
        on, until the front closes the link.
        """
        request = self._request
        if request is not None:
            if not request.ended.done():
                ended = asyncio.wrap_future(request.ended)
                with watched(receive, lambda: self._cancel(request, CancelReason.DISCONNECT)):
                    await asyncio.shield(ended)
            await self._write_all(self._ending())
        if self._telling is not None:
            await self._telling
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _ending(self) -> bytes:
        """Return the frame of the request's ending, once. It comes before the answer's end, so that the front knows of
        the ending when its client does.
        """
        request = self._request
        if request is None or self._has_told_ending or not request.ended.done():
            return b""
        self._has_told_ending = True
        return frame(ENDED, as_json(ending_of(request, self._state_of(request))))

    async def _write(self, kind: bytes, content: bytes) -> None:
        await self._write_all(frame(kind, content))

    async def _write_all(self, data: bytes) -> None:
        owed, self._owed = self._owed, b""
        if owed or data:
            await self._send({"type": "http.response.body", "body": owed + data, "more_body": True})


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def ending_of(request: Request, state: tuple[Any, ...]) -> dict[str, Any]:
    """Return the request's last state, and its ending."""
    ending = request.ended.result()
    return {
        "state": state,
        "phase": ending.phase,
        "finish_reason": ending.finish_reason,
        "reason": ending.cancel_reason,
        "superseded_by": request.superseded_by,
        "error": ending.error,
        "param": ending.param,
    }


class Links:
    """The links of a server. Used in the event loop only."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._links: set[Link] = set()
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def one(self, scope: Scope, send: Send, delivered: Delivered | None) -> Iterator[Link]:
        """A link, which tells inside the block how far its request is."""
        link = Link(scope, send, self._readers, delivered)
        self._links.add(link)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="tell the front how far requests are")
        try:
            yield link
        finally:
            self._links.discard(link)

    def leave(self, owner: str, request_id: str) -> None:
        """Note that the client of this request has left."""
        for link in self._links:
            if (owner_of(link.scope), request_id_of(link.scope)) == (owner, request_id):
                link.leave()

    async def _look(self) -> None:
        """Look at the requests for as long as there are links."""
        while self._links:
            await asyncio.sleep(STATE_SECONDS)
            for link in self._links:
                link.tell_state()
        self._looking = None


class FrontLinks:
    """The outermost ASGI application of a server behind a front."""

    def __init__(self, app: ASGIApp, links: Links) -> None:
        self._app = app
        self._links = links

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = next((value for name, value in scope.get("headers", ()) if name == LINK), b"")
        if scope["type"] != "http" or not told:
            await self._app(scope, receive, send)
            return
        try:
            delivered, receive = await delivered_before(scope, receive, told)
        except ClientDisconnect:
            return
        with self._links.one(scope, send, delivered) as link:
            scope.setdefault("state", {})["link"] = link
            if delivered is not None and delivered.promise is not None:
                scope["state"][CREATED] = delivered.promise.created_at
            await link.open()
            try:
                await self._app(scope, receive, link.send)
            except asyncio.CancelledError:
                if not link.left:
                    raise
                link.left_for_good()
            await link.close(receive)


def link_of(scope: Scope) -> Link | None:
    """Return the link to the front, if there is one."""
    link: Link | None = scope["state"].get("link")
    return link


async def delivered_before(scope: Scope, receive: Receive, told: bytes) -> tuple[Delivered | None, Receive]:
    """Read what was delivered, and return it with the function that receives the rest of the body.

    Parameters
    ----------
    told
        The header of the link.
    """
    sizes = [int(one) for one in told.split(b",")]
    if len(sizes) == 1:
        return None, receive
    read, message = bytearray(), dict[str, Any](more_body=True)
    while len(read) < sum(sizes) and message.get("more_body", False):
        message = dict(await receive())
        read += message.get("body", b"")
    n_head, n_before = sizes[0], sum(sizes)
    if len(read) < n_before:
        raise ClientDisconnect
    lengths = [(LENGTH, b"%d" % (int(value) - n_before)) for name, value in scope["headers"] if name == LENGTH]
    scope["headers"] = [pair for pair in scope["headers"] if pair[0] != LENGTH] + lengths
    rest = [message | {"body": bytes(read[n_before:])}]

    async def receive_rest() -> Message:
        return rest.pop() if rest else await receive()

    return Delivered.read(bytes(read[:n_head]), bytes(read[n_head:n_before])), receive_rest
