"""The feed moves the engine's events to the readers, a few times a second. Used in the event loop only.

A reader is only a place in the ring, so a slow reader costs nothing. It is dropped when the ring no longer has the fact
that it would read next. (The connection of a reader that takes nothing at all is closed earlier, by the connection's
own watch.)

Recording begins with the first reader, and ends some time after the last has left: an engine without readers has no
recorder.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from pyllmcancel.engine.engine import Engine
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.workers import post
from pyllmcancel.server.live.events import Stats
from pyllmcancel.server.live.facts import Fact, FactFinder, PlainFact, Recorder, Ring
from pyllmcancel.server.live.texts import Texts
from pyllmcancel.server.live.wording import Audience, Frames
from pyllmcancel.server.running.llama_metrics import Totals
from pyllmcancel.server.running.metrics import EngineMetrics, n_paused
from pyllmcancel.server.timer import Timer
from pyllmcancel.shares import Shares

WITHOUT_READERS = 1.0  # seconds between two flushes, which then encode nothing but join equal steps
KEPT_SECONDS = 60.0  # recording continues for this time after the last reader has left, in case it comes back
STATS_SECONDS = 1.0
# The share of one core that a feed may take, with all of its readers. The compute threads wait for each other, so the
# whole engine loses what one core loses. The longer a flush takes, the rarer it is.
SHARE = 0.005
SHORTEST, LONGEST = 0.1, 5.0  # seconds between two flushes
SHOWN_TOTALS = [name for name in Totals._fields if name in Stats.__annotations__]
WEIGHT = 0.25  # weight of the last flush in the estimate of a flush's cost


@dataclass(eq=False, slots=True)
class Reader:
    """One reader: the last fact that it has read, and the function that drops it."""

    audience: Audience
    place: int
    drop: Callable[[], object]


class Feed:
    """The readers of one server, and their events. A reader without one of the `seats`, by owners, is refused."""

    def __init__(self, metrics: EngineMetrics, seats: Shares) -> None:
        self.ring: Ring[Fact] = Ring()
        self.frames = Frames()
        self.ended = False  # True if no event follows those in the ring
        self._readers: dict[Reader, None] = {}
        self._change = asyncio.Event()  # set at the next change
        self._metrics = metrics
        self._seats = seats
        self.texts: Texts | None = None
        self._engine: Callable[[], Engine | None] = lambda: None
        self._awaits_end = False  # True from the first reader on
        self._recorder: Recorder | None = None  # set while recording
        self._facts = FactFinder()
        self._flushing = Timer()
        self._leaving = Timer()
        self._flushed_at = float("-inf")
        self._cost = 0.0  # estimate of a flush's seconds, its readers' writing included
        self._stats: Stats | None = None  # as they were sent last
        self._stats_due = False  # set when something has happened since
        self._stats_at = float("-inf")

    def watch(self, engine: Engine, texts: Texts | None) -> None:
        """Feed on this engine from the first reader on; `texts` are shown, if given."""
        self._engine = weakref.ref(engine)  # the engine's thread has our recorder, and must not keep the engine alive
        self.frames = Frames(texts)
        self.texts = texts

    # -- readers ------------------------------------------------------------------------------------------------------

    def check_room(self, owner: str) -> None:
        """Raise ApiError 503 if there is no seat left, or after the end."""
        engine = self._engine()
        if self.ended or engine is None or engine.stopped.done():
            raise ApiError(503, "the engine has stopped", "server_error", code="shutdown")
        if not self._seats.has(owner):
            raise too_many_readers()

    @contextmanager
    def reader(self, audience: Audience, owner: str, drop: Callable[[], object]) -> Iterator[Reader]:
        """Read events from now on inside the block; ApiError as in `check_room`. A slow reader's `drop` is called."""
        self.check_room(owner)
        self._seats.take(owner)
        reader = Reader(audience, 0, drop)
        try:
            self._listen()
            self.flush()  # before it counts as a reader: one that comes after a gap has missed nothing
            reader.place = self.ring.newest
            self._readers[reader] = None
            yield reader
        finally:
            self._readers.pop(reader, None)
            if not (self._readers or self.ended):
                self._leaving.start(KEPT_SECONDS, self._listen_no_more)
            self._seats.give_back(owner)

    @property
    def n_readers(self) -> int:
        return len(self._readers)

    def read(self, reader: Reader) -> bytes:
        """Return the next events for the reader, some at a time; empty if there are none for now."""
        chunk, reader.place = self.frames.after(self.ring, reader.place, reader.audience)
        return chunk

    async def change(self) -> None:
        """Wait until there are more events, or for the end."""
        if not self.ended:
            await self._change.wait()

    # -- listening ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Start recording the engine's events, if that has not been done."""
        self._leaving.stop()
        engine, loop = self._engine(), asyncio.get_running_loop()
        if self._recorder is not None or engine is None:
            return
        if not self._awaits_end:
            self._awaits_end = True
            engine.stopped.add_done_callback(lambda _: post(loop, self._end))
        self._recorder = Recorder(lambda: loop.call_soon_threadsafe(self._flush_soon))
        engine.add_observer(self._recorder)

    def _listen_no_more(self) -> None:
        self._stop_recording()
        self._recorder = None
        self.ring.skip()

    def _end(self) -> None:
        """The engine computes no more: send the remaining events, and mark the end."""
        self.flush()
        self.ended = True
        self._change.set()
        self._stop_recording()

    def _stop_recording(self) -> None:
        engine = self._engine()
        if self._recorder is not None and engine is not None:
            engine.remove_observer(self._recorder)
        self._leaving.stop()
        self._flushing.stop()

    # -- flushing -----------------------------------------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """Seconds between two flushes."""
        if not self._readers:
            return WITHOUT_READERS
        return min(max(SHORTEST, self._cost / SHARE), LONGEST)

    def _flush_soon(self) -> None:
        self._flush_at(self._flushed_at + self.interval)

    def _flush_at(self, at: float) -> None:
        """Flush at that time, at the latest."""
        if self._recorder is not None and not self.ended:
            # A pending flush may wait for the statistics, which must not delay events.
            self._flushing.start(max(0.0, at - time.monotonic()), self._flush_and_clock, or_earlier=True)

    def _flush_and_clock(self) -> None:
        """Flush, and learn the cost of a flush: the readers that it has woken write before the cost is counted."""
        began = time.thread_time()
        self.flush()
        asyncio.get_running_loop().call_soon(self._learn, began)

    def _learn(self, began: float) -> None:
        self._cost += WEIGHT * (time.thread_time() - began - self._cost)

    def flush(self) -> None:
        """Publish the events since the last flush."""
        if self._recorder is None:
            return
        self._flushing.stop()
        self._flushed_at = time.monotonic()
        overrun, self._recorder.overrun = self._recorder.overrun, False
        facts = list(self._facts.find(self._recorder.take()))
        if overrun:
            self.ring.skip()
            facts = []
        self._stats_due = self._stats_due or bool(facts)
        newest = self.ring.newest
        self.ring.extend(facts)
        self.ring.extend(self._stats_fact())
        for reader in [one for one in self._readers if not self.ring.remembers(one.place)]:
            reader.drop()
        if self.ring.newest > newest:
            # All readers are woken at the same time, so that their events are encoded once.
            self.frames.forget()
            self._change.set()
            self._change = asyncio.Event()
        if self._stats_due and self._sends_stats():
            self._flush_at(self._stats_at + STATS_SECONDS)

    # -- statistics ---------------------------------------------------------------------------------------------------

    def _sends_stats(self) -> bool:
        """Return whether a reader sees everything."""
        audiences = (reader.audience for reader in self._readers)
        return any(one.owner is None and (one.types is None or "stats" in one.types) for one in audiences)

    def _stats_fact(self) -> Iterator[PlainFact]:
        now = time.monotonic()
        if not self._stats_due or now - self._stats_at < STATS_SECONDS or not self._sends_stats():
            return
        self._stats_due = False
        stats = self.stats()
        if stats is None or (self._stats is not None and {**stats, "at": self._stats["at"]} == self._stats):
            return
        self._stats, self._stats_at = stats, now
        yield PlainFact(None, {"type": "stats", **stats})  # type: ignore[typeddict-item]  # a key that may be absent

    def stats(self) -> Stats | None:
        """Return live requests, resources in use, and counts since the start; None without an engine."""
        engine = self._engine()
        if engine is None:
            return None
        counts, occupancy, totals = engine.counts(), engine.occupancy(), self._metrics.totals()
        shown: dict[str, Any] = {
            "at": time.monotonic(),
            "waiting": counts.waiting,
            "running": counts.running,
            "cancelling": counts.cancelling,
            "paused": n_paused(engine),
            "slots_used": occupancy.slots,
            "cells_used": occupancy.cells,
            "cells_idle": occupancy.idle_cells,
            "generated_tokens": engine.n_generated,
        }
        return cast("Stats", shown | {name: getattr(totals, name) for name in SHOWN_TOTALS})


def too_many_readers() -> ApiError:
    message = "the feed has too many readers (--max-event-clients)"
    return ApiError(503, message, "server_error", code="too_many_readers")
