"""The feed's work in the engine's threads: they append records, and wake the event loop once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NamedTuple

from pyllmcancel.events import Ending
from pyllmcancel.requests.observer import Observer, StepRecord
from pyllmcancel.requests.request import Request

# Much more than happens between two flushes. If this limit is reached the event loop hangs, and the readers begin anew.
MAX_RECORDS = 100_000


class Happening(NamedTuple):
    """Something that happened to a request. An admission has its slots and cached tokens, an end its ending."""

    kind: Literal["added", "admitted", "cancelled", "ended"]
    request: Request
    at: float
    ending: Ending | None = None
    slots: tuple[int, ...] = ()
    cached_tokens: int = 0


class Stepped(NamedTuple):
    record: StepRecord
    n_wasted: int


Record = Happening | Stepped


class Recorder(Observer):
    """An observer that keeps events until the event loop takes them.

    It is called between two steps, so it only makes a tuple and appends it. That needs no lock and no JSON, and takes a
    few microseconds. `wake` is called from any thread when there are records, once until they are taken, or at worst
    twice.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._records: deque[Record] = deque()
        self._woken = False
        self.overrun = False  # set if records were lost; written by any thread, reset by the event loop

    def take(self) -> list[Record]:
        """Take all records, oldest first. In the event loop only."""
        self._woken = False  # first: records that come meanwhile wake the loop again
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._records.popleft())
        return taken

    def request_added(self, request: Request) -> None:
        self._keep(Happening("added", request, time.monotonic()))

    def request_admitted(self, request: Request) -> None:
        summary = request.summary()
        self._keep(Happening("admitted", request, time.monotonic(), None, summary.slots, summary.cached_tokens))

    def request_cancelled(self, request: Request) -> None:
        self._keep(Happening("cancelled", request, request.cancellation.requested_at or time.monotonic()))

    def request_ended(self, request: Request, ending: Ending) -> None:
        self._keep(Happening("ended", request, request.ended_at or time.monotonic(), ending))

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        self._keep(Stepped(record, n_wasted))

    def _keep(self, record: Record) -> None:
        if len(self._records) >= MAX_RECORDS:
            self.overrun = True
            return
        self._records.append(record)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the event loop was closed
                self._wake()
