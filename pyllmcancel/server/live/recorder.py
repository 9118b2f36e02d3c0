"""The work of the engine's threads for the feed: they append, and wake the event loop once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.requests.observer import NullObserver

if TYPE_CHECKING:
    from pyllmcancel.events import Ending
    from pyllmcancel.requests.observer import StepRecord
    from pyllmcancel.requests.request import Request

# Much more than happens between two flushes. If it is reached the event loop hangs, and the readers begin anew.
MOST_RECORDS = 100_000


class Added(NamedTuple):
    request: Request
    at: float


class Admitted(NamedTuple):
    request: Request
    at: float
    slots: tuple[int, ...]
    cached_tokens: int


class Cancelled(NamedTuple):
    request: Request
    at: float


class Ended(NamedTuple):
    request: Request
    at: float
    ending: Ending


class Stepped(NamedTuple):
    record: StepRecord
    n_wasted: int


Record = Added | Admitted | Cancelled | Ended | Stepped


class Recorder(NullObserver):
    """An observer that keeps what happens until the event loop takes it.

    It is called between two steps, so it makes a tuple and appends it, which needs no lock: no more than a few
    microseconds, none of them spent on JSON. Whether the loop has been told is a flag without a lock, too: at worst the
    loop is told twice.

    Parameters
    ----------
    wake
        Called, from any thread, when there is something to take, once until it is taken.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._records: deque[Record] = deque()
        self._told = False
        self.overrun = False  # records were lost; written by any thread, reset by the event loop

    def take(self) -> list[Record]:
        """All records, oldest first. In the event loop only."""
        self._told = False  # first: what comes meanwhile is told again
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._records.popleft())
        return taken

    def request_added(self, request: Request) -> None:
        self._keep(Added(request, time.monotonic()))

    def request_admitted(self, request: Request) -> None:
        summary = request.summary()
        self._keep(Admitted(request, time.monotonic(), summary.slots, summary.cached_tokens))

    def request_cancelled(self, request: Request) -> None:
        self._keep(Cancelled(request, request.cancellation.requested_at or time.monotonic()))

    def request_ended(self, request: Request, ending: Ending) -> None:
        self._keep(Ended(request, request.ended_at or time.monotonic(), ending))

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        self._keep(Stepped(record, n_wasted))

    def _keep(self, record: Record) -> None:
        if len(self._records) >= MOST_RECORDS:
            self.overrun = True
            return
        self._records.append(record)
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the event loop was closed
                self._wake()
