"""The front's end of a link: a request on its way to a process, and the frames that come back.

See `pyllmcancel.server.behind`. Bodies go on to the client in the event loop's callback that has read them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyllmcancel.front.forwarding import ClientAnswer, Lost, is_stream, kept, process_ended
from pyllmcancel.front.requests import BAD
from pyllmcancel.front.upstream import Broken, WorkerConnection
from pyllmcancel.server.behind import BODY, DOES_NOT_GO_ON, HEAD, MARK
from pyllmcancel.server.delivered import Delivered

if TYPE_CHECKING:
    from pyllmcancel.front.requests import FrontRequest
    from pyllmcancel.front.upstream import Headers

Frame = tuple[bytes, bytes]
"""A frame's kind and content."""
MAX_FRAME = 1 << 28


class Frames:
    """Decodes frames."""

    def __init__(self) -> None:
        self._begun = bytearray()  # of a frame that is not complete
        self._length = 0  # of that frame, once it is known

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Iterate over the frames that are complete with these bytes; Broken if they are no frames."""
        if self._begun:
            self._begun += data
            if len(self._begun) < self._length:
                return
            data = bytes(self._begun)
        at = self._length = 0
        while len(data) - at >= HEAD.size:
            kind, length = HEAD.unpack_from(data, at)
            if length > MAX_FRAME:
                raise Broken("not a frame")
            end = at + HEAD.size + length
            if end > len(data):
                self._length = end - at
                break
            yield kind, data[at + HEAD.size : end]
            at = end
        self._begun[:] = data[at:]


class FrontLink:
    """The frames of one exchange. Used in the event loop only. `delivered` follows what the answer's client gets."""

    def __init__(self, exchange: WorkerConnection, delivered: Delivered) -> None:
        self._exchange = exchange
        self._delivered = delivered
        self._frames = Frames()
        self._read: deque[Frame] = deque()
        # Takes a piece of the answer's body, when there is nothing before it; returns False if it can take no more now.
        self.pass_on: Callable[[bytes], bool] | None = None

    async def next(self) -> Frame:
        """Return the next frame that was not passed on; Broken if the process has ended, or sends what is none.

        An empty piece of the body says that its client does not keep up.
        """
        while not self._read:
            await self._exchange.flow(self._take)
        return self._read.popleft()

    def command(self, command: bytes) -> None:
        """Have the process act on a command, after what it got before."""
        self._exchange.write(command + b"\n")

    def _take(self, data: bytes) -> bool:
        for kind, content in self._frames.feed(data):
            if kind == MARK:
                if self._delivered.note_mark(content):
                    self.pass_on = None  # what comes is an error, and may not be the last word
            elif kind == BODY and self.pass_on is not None and not self._read:
                self._delivered.add(content)
                if not self.pass_on(content):
                    self._read.append((BODY, b""))
            else:
                self._read.append((kind, content))
        return not self._read

    def close(self) -> None:
        """Close the connection at once, which cancels the request. Idempotent."""
        self._exchange.close()


class Delivery:
    """Delivers the answer to the client, and holds back what must not come too early. Used in the event loop only."""

    def __init__(self, request: FrontRequest, answer: ClientAnswer) -> None:
        self.delivered = Delivered()  # what the client has got, so that another process can go on
        self.came_too_late = False  # the cancel: the process had completed the answer
        self._request = request
        self._answer = answer
        self._status, self._headers = 200, list[tuple[bytes, bytes]]()  # what the process began with
        self._held: list[bytes] = []  # not to be delivered before the answer's end is known

    async def begin(self, link: FrontLink, status: int, headers: Headers, extra: Headers) -> None:
        """Begin a stream. What comes in one piece is held until its end, so that another process can begin anew.

        Lost if the process does not go on with an answer of which nothing was delivered: one is to begin it. ApiError
        if it does not go on with an answer that another one has begun; RequestCancelled if that is cancelled.
        """
        is_refused = status == DOES_NOT_GO_ON and self.delivered.promise is not None
        if is_refused and not self.delivered.n_bytes:
            self.delivered.forget()
            raise Lost
        if self._answer.complete and status < BAD:  # of a response in the background, which moved
            return
        if is_refused or (self._answer.head is not None and not is_stream(headers)):
            raise self._request.cancel_error() if self._request.cancellation.requested else process_ended()
        self._status, self._headers = status, [*kept(headers), *extra]
        if self._request.cancellation.requested or not is_stream(headers):
            return
        if self._answer.head is None:
            await self._answer.begin(status, self._headers)
        if self._answer.is_chunked and not self._request.cancellation.requested:
            link.pass_on = self._answer.pass_on

    async def write(self, piece: bytes) -> None:
        """Deliver a piece, or hold it; an empty one waits for a client that does not keep up."""
        if self._answer.complete:
            return
        if self._request.cancellation.requested or self._answer.head is None:
            self._held.append(piece)
            return
        sound, error = self.delivered.without_failure(piece)
        self._held += [error] if error else []
        self.delivered.add(sound)
        try:
            await self._answer.write(sound)
        except asyncio.CancelledError:  # it waited for its client, and was not written
            self._held.insert(0, sound)
            raise

    async def end(self) -> None:
        """End the answer as its request has ended: a cancelled one never looks complete.

        RequestCancelled if the client has no answer yet.
        """
        if self._answer.complete:
            return
        if self._request.cancellation.requested and (self._answer.head is None or self.came_too_late):
            await self.break_off(self._request.cancel_error())
            return
        if self._answer.head is None:
            await self._answer.begin(self._status, self._headers)
        await self._answer.write(b"".join(self._held))
        await self._answer.end()

    async def break_off(self, error: Exception) -> None:
        """End the answer with an error; raise it if the answer has not begun."""
        if self._answer.head is None:
            raise error
        if not self._answer.complete:
            await self._answer.break_off(error)

    def lose_rest(self) -> None:
        """Forget what the process has told and not delivered: it is lost."""
        self.delivered.lose_rest()
        self._held.clear()
