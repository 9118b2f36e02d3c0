"""Events from the engine thread to the readers of answers: asyncio tasks, or plain threads.

A sink takes a request's events from the engine; a stream is what the reader holds. The engine knows sinks only, so a
stream that its reader forgets is collected, and cancels. Events of one step are handed to an event loop in one call,
however many streams it reads: waking a loop costs more than decoding a token.

What a reader leaves unread is bounded where the sink was given a `Bound`: the server's streams have one, for their
readers are behind sockets, and may stop for ever. A sink with more unread deltas than that is `full`, and the engine
thread takes its request's slots back until few are left; only the flag and one wake-up go from the reader to the
engine. Without a bound, as in the library, nothing pauses: a program may submit now, wait for ``request.ended``, and
read later.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, RequestCancelled, RequestFailed, UsageError
from pyllmcancel.events import Delta, Ending, Event, FinishReason

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyllmcancel.events import Sink
    from pyllmcancel.requests.request import Request

# Of two readers one would get the ending, and the other wait for ever.
TWO_READERS = "somebody else is reading this stream: it has one reader at a time"
FORKED = "this process was forked from the engine's: nobody computes here; load an engine of its own"


class Controls(Protocol):
    """The part of the engine that a stream may use."""

    def cancel(self, request: Request, reason: CancelReason) -> bool: ...

    def dropped(self, request: Request) -> None:
        """As `cancel`, a moment later, and from a destructor."""

    @property
    def forked(self) -> bool:
        """True if this process was forked from the engine's, and so has no engine thread."""


class ThreadSink:
    """Events for a reader that blocks in a thread."""

    loop = None
    full = False

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def put(self, event: Event) -> None:
        self.events.put(event)


class Bound(NamedTuple):
    """How much may be left unread.

    Attributes
    ----------
    most, few
        Events: with so many a sink is full, with so few it is not any more.
    wake
        Called when it is not: the engine's `Registry.wake`.
    """

    most: int
    few: int
    wake: Callable[[], object]


class LoopSink:
    """Events for one reader in an event loop; touched in that loop's thread only, but for `full`.

    Attributes
    ----------
    full : bool
        Written in the loop's thread. The engine thread reads it once a turn: it may be a turn late, never wrong for
        longer, because it is woken after each change that it would have to wait for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bound: Bound | None = None) -> None:
        self.loop = loop
        self.full = False
        self._bound = bound
        self._events: deque[Event] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        if self._bound is not None and len(self._events) >= self._bound.most:
            self.full = True
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def has_reader(self) -> bool:
        """True if a task waits for the next event."""
        return self._reader is not None

    async def get(self) -> Event:
        while not self._events:
            self._reader = self.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._events.popleft()
        if self.full and self._bound is not None and len(self._events) <= self._bound.few:
            self.full = False
            self._bound.wake()
        return event

    def next_is_delta(self) -> bool:
        """Return whether the next event is there already, and is no ending."""
        return bool(self._events) and isinstance(self._events[0], Delta)


class Outbox:
    """The events of one step, posted together: one wake-up per event loop. Used by one thread."""

    def __init__(self) -> None:
        self._by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Sink, Event]]] = defaultdict(list)
        # The last events of requests, that a failure has kept from being added.
        self._owed: list[tuple[Request, Ending, list[Event]]] = []

    def owe(self, request: Request, ending: Ending, last: Delta | None) -> None:
        """From now on the ending of `request` is certain, whatever fails before `pay` is called, or fails itself."""
        self._owed.append((request, ending, [ending] if last is None else [last, ending]))

    def pay(self) -> None:
        """Resolve and tell the endings that are owed."""
        while self._owed:
            request, ending, events = self._owed[0]
            if not request.ended.done():
                request.ended.set_result(ending)
            while events:
                self.add(request.sink, events[0])
                del events[0]
            del self._owed[0]

    def add(self, sink: Sink, event: Event) -> None:
        if sink.loop is None:
            sink.put(event)
        else:
            self._by_loop[sink.loop].append((sink, event))

    def flush(self) -> None:
        self.pay()
        for loop, mail in list(self._by_loop.items()):
            # The loop was closed, and its readers with it? Their streams have cancelled, or will be collected.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver, mail)
            self._by_loop.pop(loop, None)  # one by one: what could not be posted for a lack of memory is posted later


def deliver(mail: list[tuple[Sink, Event]]) -> None:
    """Runs in the event loop's thread."""
    for sink, event in mail:
        sink.put(event)


class Stream:
    """The stream of one request, which its reader holds. Leaving it early, in whichever way, cancels the request.

    Attributes
    ----------
    request : Request
        To look at, not to touch.
    ending : Ending or None
        The terminal event, once it was read.
    """

    def __init__(self, request: Request, controls: Controls) -> None:
        self.request = request
        self.ending: Ending | None = None
        self._controls = controls

    def cancel(self, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel the request, from any thread; returns whether this call decided its fate. Never raises."""
        return self._controls.cancel(self.request, reason)

    def _check(self, event: Event) -> Delta | None:
        """A delta, or None at the proper end; raises for the other endings."""
        if isinstance(event, Delta):
            return event
        self.ending = event
        match event.finish_reason:
            case FinishReason.CANCELLED:
                assert event.cancel_reason is not None
                raise RequestCancelled(event.cancel_reason, event.usage)
            case FinishReason.ERROR:
                raise RequestFailed(event.error or "unknown error", event.usage, event.param)
            case FinishReason.STOP | FinishReason.LENGTH:
                return None

    def __del__(self) -> None:
        if not (self.request.ended.done() or self.request.cancellation.requested or self._controls.forked):
            self._controls.dropped(self.request)
            warnings.warn(f"request {self.request.id} was dropped before its end", ResourceWarning, stacklevel=2)


class ThreadStream(Stream):
    """Iterate, in any thread; leaving the ``with`` block or an exception (Ctrl-C too) cancels and waits.

    Examples
    --------
    >>> with engine.generate("def ", max_tokens=8) as stream:  # doctest: +SKIP
    ...     for delta in stream:
    ...         print(delta.text, end="")
    """

    def __init__(self, request: Request, controls: Controls, sink: ThreadSink) -> None:
        super().__init__(request, controls)
        self._sink = sink
        self._reading = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        """The next delta.

        Raises
        ------
        UsageError
            Another thread waits for it.
        """
        if not self._reading.acquire(blocking=False):
            raise UsageError(TWO_READERS)
        try:
            return self._next()
        finally:
            self._reading.release()

    def _next(self) -> Delta:
        if self.ending is not None:
            raise StopIteration
        if self._controls.forked:
            raise EngineClosedError(FORKED)
        try:
            event = self._sink.events.get()
        except BaseException:
            self.cancel()
            raise
        delta = self._check(event)
        if delta is None:
            raise StopIteration
        return delta

    def close(self) -> None:
        """Cancel if it still runs, and wait until nothing is computed for it any more."""
        self.cancel()
        if not self._controls.forked:
            self.request.ended.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(Stream):
    """Iterate in the event loop that submitted; cancelling the reading task cancels the request.

    Parameters
    ----------
    task_cancelled
        The reason of such a cancel.
    """

    def __init__(
        self,
        request: Request,
        controls: Controls,
        sink: LoopSink,
        task_cancelled: CancelReason = CancelReason.EXPLICIT,
    ) -> None:
        super().__init__(request, controls)
        self._sink = sink
        self._task_cancelled = task_cancelled

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        delta = await self.next_delta()
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def next_delta(self) -> Delta | None:
        """The next delta; None after the last one of an answer that is complete.

        Raises
        ------
        UsageError
            Another task waits for it.
        """
        if self.ending is not None:
            return None
        if self._sink.has_reader:
            raise UsageError(TWO_READERS)
        try:
            event = await self._sink.get()
        except BaseException:
            self.cancel(self._task_cancelled)
            raise
        return self._check(event)

    async def batches(self) -> AsyncIterator[list[Delta]]:
        """Deltas as they come, those together that came together: what one write to a socket should carry."""
        while (delta := await self.next_delta()) is not None:
            batch = [delta]
            while self._sink.next_is_delta():
                batch.append(cast("Delta", await self.next_delta()))
            yield batch

    async def aclose(self) -> None:
        """Cancel if it still runs, and wait until nothing is computed for it any more."""
        self.cancel()
        await asyncio.shield(asyncio.wrap_future(self.request.ended))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
