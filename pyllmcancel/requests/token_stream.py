"""Events from the engine thread to the readers of answers: asyncio tasks, or plain threads.

A sink takes a request's events from the engine; a stream is what the reader holds. The engine knows sinks only, so a
stream that its reader drops is collected, and cancels its request. Events of one step are handed to an event loop in
one call, for any number of streams: waking a loop costs more than decoding a token.

A `Bound` limits the unread events of a sink. The server's streams have one, because their readers are behind sockets
and may stop for ever. A sink with more unread events is `full`, and the engine thread takes its request's slots back
until few events are left. Only the flag and one wake-up go from the reader to the engine. Without a bound, as in the
library, nothing pauses: a program may submit now, wait for ``request.ended``, and read later.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import warnings
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Protocol, Self, cast

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, RequestFailed, UsageError
from pyllmcancel.events import Delta, Ending, Event, FinishReason, Sink
from pyllmcancel.requests.request import Request

# With two readers, one would get the ending and the other would wait for ever.
TWO_READERS = "another thread or task is reading this stream, which can have one reader at a time"
FORKED = "this process was forked from the engine's process and has no engine thread: load an engine here"


class Controls(Protocol):
    """The part of the engine that a stream may use."""

    def cancel(self, request: Request, reason: CancelReason) -> bool: ...

    def dropped(self, request: Request) -> None:
        """As `cancel`, but a moment later; may be called from a destructor."""

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
    """The limits of a sink's unread events."""

    most: int  # a sink with this number is full
    few: int  # with this number it is not full any more
    wake: Callable[[], object]  # called when the sink is no longer full: the engine's `Registry.wake`


class LoopSink:
    """Events for one reader in an event loop. All but `full` is used in that loop's thread only.

    `full` is written there. The engine thread reads it once a turn: it may see the flag one turn late, but no later,
    because it is woken after each change that it may wait for.
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
        """Return whether the next event is already there, and is not the ending."""
        return bool(self._events) and isinstance(self._events[0], Delta)


class Outbox:
    """The events of one step, posted together with one wake-up per event loop. Used by one thread."""

    def __init__(self) -> None:
        self._by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Sink, Event]]] = defaultdict(list)
        # The last events of requests, which a failure has kept from being added.
        self._owed: list[tuple[Request, Ending, list[Event]]] = []

    def owe(self, request: Request, ending: Ending, last: Delta | None) -> None:
        """Note that the ending of `request` is certain, even if something fails before or in `pay`."""
        self._owed.append((request, ending, [ending] if last is None else [last, ending]))

    def pay(self) -> None:
        """Resolve and send the endings that are owed."""
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
            # The loop was closed. Its readers' streams have cancelled, or will be collected.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver, mail)
            # one by one: events that could not be posted for a lack of memory are posted later
            self._by_loop.pop(loop, None)


def deliver(mail: list[tuple[Sink, Event]]) -> None:
    """Take over events; runs in the event loop's thread."""
    for sink, event in mail:
        sink.put(event)


class Stream:
    """The stream of one request, which its reader holds. Leaving it early, in whichever way, cancels the request.

    Attributes
    ----------
    request : Request
        The request, for reading only.
    ending : Ending or None
        The terminal event, after it was read.
    """

    def __init__(self, request: Request, controls: Controls) -> None:
        self.request = request
        self.ending: Ending | None = None
        self._controls = controls

    def cancel(self, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel the request, from any thread; returns whether this call decided its fate. Never raises."""
        return self._controls.cancel(self.request, reason)

    def _check(self, event: Event) -> Delta | None:
        """Return a delta, or None at the proper end; raise for the other endings."""
        if isinstance(event, Delta):
            return event
        self.ending = event
        match event.finish_reason:
            case FinishReason.CANCELLED:
                raise self.request.cancel_error()
            case FinishReason.ERROR:
                raise RequestFailed(event.error or "unknown error", event.usage, event.param)
            case FinishReason.STOP | FinishReason.LENGTH:
                return None

    def __del__(self) -> None:
        if not (self.request.ended.done() or self.request.cancellation.requested or self._controls.forked):
            self._controls.dropped(self.request)
            warnings.warn(f"request {self.request.id} was dropped before its end", ResourceWarning, stacklevel=2)


class ThreadStream(Stream):
    """A stream to iterate over in any thread. Leaving the ``with`` block, or an exception such as Ctrl-C, cancels and
    waits.

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
        """Return the next delta; UsageError if another thread waits for it."""
        if not self._reading.acquire(blocking=False):
            raise UsageError(TWO_READERS)
        try:
            delta = self._next() if self.ending is None else None
        finally:
            self._reading.release()
        if delta is None:
            raise StopIteration
        return delta

    def _next(self) -> Delta | None:
        if self._controls.forked:
            raise EngineClosedError(FORKED)
        try:
            event = self._sink.events.get()
        except BaseException:
            self.cancel()
            raise
        return self._check(event)

    def close(self) -> None:
        """Cancel the request if it still runs, and wait until nothing is computed for it any more."""
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
    """A stream to iterate over in the event loop that submitted. Cancelling the reading task cancels the request.

    Parameters
    ----------
    task_cancelled
        The reason of a cancel by the reading task.
    """

    def __init__(
        self, request: Request, controls: Controls, sink: LoopSink, task_cancelled: CancelReason = CancelReason.EXPLICIT
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
        """Return the next delta, None after the last one of a complete answer; UsageError if another task waits."""
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
        """Iterate over lists of deltas that came together, each of which one write to a socket should carry."""
        while (delta := await self.next_delta()) is not None:
            batch = [delta]
            while self._sink.next_is_delta():
                batch.append(cast("Delta", await self.next_delta()))
            yield batch

    async def aclose(self) -> None:
        """Cancel the request if it still runs, and wait until nothing is computed for it any more."""
        self.cancel()
        await asyncio.shield(asyncio.wrap_future(self.request.ended))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
