"""An answer that goes on without a reader, and is read again: the one mechanism of streams that are taken up again, and
of responses in the background.

A `KeptAnswer` is running, then ended. A task of its own writes its events into a log of bytes, which any number of
readers follow, each from its own place (`reading`). Events are made once, so every reader gets the same bytes. Behind a
front nothing is kept: the front has the log.
`KeptAnswers` is a table of them by owner and name: one for streams, one for responses that have not ended. What differs
is in `Keeping`: a stream stays in memory for its seconds; a response in the background has no limits here, because its
end is stored before it is written, and read from the store thereafter.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Stream
from pyllmcancel.server.answer_events import ErrorForReader, Write, frame
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.errors.shapes import openai_error
from pyllmcancel.server.limits import MAX_STREAM_BYTES
from pyllmcancel.server.timer import Timer

logger = logging.getLogger("pyllmcancel.server")


# bytes that one read returns at most
READ_AT_ONCE = 1 << 16


class ByteLog:
    """The last bytes that were written, which can be read from any of them on. Used in the event loop only.

    Places are counted in bytes from the first that was ever written. If there are more than `limit`, whole pieces are
    dropped, the oldest first, but never the last one.
    """

    def __init__(self, limit: float) -> None:
        self.begin = self.end = 0  # the places of the first byte that is kept, and after the last one
        self.ended = False  # True if nothing follows
        self._changed = asyncio.Event()  # replaced at each change, so that every waiter wakes up once
        self._limit = limit
        self._bytes = bytearray()
        self._ends = deque[int]()  # of the pieces that are kept

    @property
    def content(self) -> bytes:
        """All bytes that are kept."""
        return bytes(self._bytes)

    def write(self, piece: bytes) -> None:
        self._bytes += piece
        self.end += len(piece)
        self._ends.append(self.end)
        while self.end - self.begin > self._limit and len(self._ends) > 1:
            after = self._ends.popleft()
            del self._bytes[: after - self.begin]
            self.begin = after
        self._wake()

    def finish(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def longer_than(self, place: float) -> bool:
        """Wait until there are bytes after this place, and return True; False if there never will be."""
        while self.end <= place and not self.ended:
            await self._changed.wait()
        return self.end > place

    def read(self, place: int) -> bytes:
        """Return whole pieces from this place on, a limited number of bytes at once; nothing at the end."""
        assert self.begin <= place <= self.end
        if place == self.end:
            return b""
        last = max(bisect_right(self._ends, place), bisect_right(self._ends, place + READ_AT_ONCE) - 1)
        return bytes(self._bytes[place - self.begin : self._ends[last] - self.begin])


@dataclass(frozen=True, slots=True)
class Keeping:
    """How an answer is kept."""

    name: str  # by which its stream is found: the conversation's, or the request's id; or the response's id
    seconds: float = math.inf  # for which the answer goes on without a reader, and is kept after its end
    is_stored: bool = False  # it needs no reader: all of it is kept until its end, and nothing after it is stored


class Events(Protocol):
    """The part of `AnswerEvents` that is used here."""

    names_events: bool

    async def write_to(self, write: Write, error_for_reader: ErrorForReader) -> bool: ...
    async def break_off(self, write: Write | None, error: Exception) -> None: ...


def conversation_key(conversation: str) -> str:
    """Return the supersede key of a conversation's streams. It begins with a blank, so that no client can name it."""
    return f" conversation {conversation}"


class KeptAnswer:
    """The events of one answer, written by a task of its own, and read by any number of clients.

    If nobody reads it for as long as it is kept, it is cancelled: its client has left. Used in the event loop only.
    """

    def __init__(self, keeping: Keeping, stream: Stream, events: Events) -> None:
        self.name = keeping.name
        self.request: Request = stream.request
        self.owner = stream.request.owner
        self.log = ByteLog(math.inf if keeping.is_stored else MAX_STREAM_BYTES)  # the events so far
        self.n_readers = 0  # the clients that read it now
        self.started, self.completed = time.time(), 0.0  # seconds since the epoch; 0 until the end
        self._seconds = keeping.seconds
        self._keeping = keeping
        self._stream = stream
        self._events = events
        self.timer = Timer()

    @property
    def ends_at_once(self) -> bool:
        """True if it is not found after its end: it is stored, or superseded, maybe by a request elsewhere."""
        superseded = self.request.cancellation.reason is CancelReason.SUPERSEDED
        return self._keeping.is_stored or (superseded and self.request.supersede == conversation_key(self.name))

    async def run(self) -> None:
        """Write the answer to its end."""
        self.expect_reader()
        try:
            await self._events.write_to(self._write, api_error)
        except Exception as error:
            logger.exception("the answer to %s failed", self.request.id, extra={"request_id": self.request.id})
            self.cancel()
            await self._events.break_off(self._write, error)
        finally:
            self.timer.stop()
            self.completed = time.time()
            self.log.finish()

    async def _write(self, events: bytes) -> None:
        self.log.write(events)

    def error_event(self, error: ApiError) -> bytes:
        """Return an event for a reader that gets no further, although the answer may go on."""
        named = self._events.names_events
        body = openai_error(error, self.request.id)
        return frame({"type": "error", **body} if named else body, named=named)

    def cancel(self, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel it; return whether this call decided its fate."""
        return self._stream.cancel(reason)

    async def stopped(self) -> None:
        """Wait until nothing is computed for it any more."""
        await asyncio.shield(asyncio.wrap_future(self.request.ended))

    async def written(self) -> None:
        """Wait until its last event is written."""
        await self.log.longer_than(math.inf)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count a reader inside the block."""
        self.n_readers += 1
        if not self.log.ended:
            self.timer.stop()
        try:
            yield
        finally:
            self.n_readers -= 1
            self.expect_reader()

    def expect_reader(self) -> None:
        """Have a reader come in time, counted from the first call since there was one."""
        if self.n_readers == 0 and not (self.timer.is_set or self.log.ended or self._keeping.is_stored):
            self.timer.start(self._seconds, lambda: self.cancel(CancelReason.DISCONNECT))

    def expire(self, forget: Callable[[Self], object]) -> None:
        """Call `forget` when it has been kept long enough after its end."""
        self.timer.start(self._seconds, lambda: forget(self))
