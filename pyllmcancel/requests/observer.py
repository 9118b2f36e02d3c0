"""The observers of an engine: metrics, traces, tests. The thread that ends the computation calls them, not HTTP."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pyllmcancel.events import Ending
from pyllmcancel.requests.request import NO_OWNER, Request

logger = logging.getLogger("pyllmcancel.engine")


class StepPart(NamedTuple):
    """The part of a step that was computed for one sequence: for `owner`'s `request`, in a `slot`.

    Of its `n_tokens`, the last `n_drafted` were a draft, of which the first `n_accepted` were accepted.
    """

    request: str
    choice: int
    phase: str
    n_tokens: int
    slot: int
    owner: str = NO_OWNER
    n_drafted: int = 0
    n_accepted: int = 0


class PartState(NamedTuple):
    """The state of a part's choice when the step was recorded: the tokens generated before the step, and their limit.

    A text that is embedded or scored generates nothing.
    """

    n_generated: int
    max_tokens: int
    cancelled: bool


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it happened."""

    number: int  # counted from 1
    started_at: float  # monotonic seconds
    seconds: float  # of decode and sampling
    sequences: tuple[StepPart, ...]
    status: str  # ``ok``, ``aborted``, ``no_room``, ``invalid``, ``failed_alloc`` or ``failed_compute``
    spared: bool = False  # a member was cancelled, and the step finished for the others
    survivors: int = 0  # sequences whose request was not cancelled
    threads: int = 1  # that computed the step
    states: tuple[PartState, ...] = ()  # of the sequences
    idle: bool = False  # the step is of idle requests
    # The ids of the requests that ended in this step, or before the next one. Added by the engine thread.
    left: list[str] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens for part in self.sequences)


class Observer:
    """The calls that the engine makes, none of which does anything here. They must be quick and must not raise.

    `request_added` and `request_cancelled` are called by the thread that submits or cancels, `request_ended` by the one
    that is responsible for the request, the others by the engine thread. So the end of a short request may be observed,
    in another thread, before its arrival.
    """

    def request_added(self, request: Request) -> None: ...
    def request_admitted(self, request: Request) -> None: ...
    def request_cancelled(self, request: Request) -> None: ...
    def request_ended(self, request: Request, ending: Ending) -> None: ...
    def step_done(self, record: StepRecord, n_wasted: int) -> None: ...
    def first_token(self, request: Request, seconds: float) -> None: ...
    def next_token(self, request: Request, seconds: float) -> None: ...


class Observers(Observer):
    """All observers of an engine. More can be added, and taken away, from any thread.

    The failure of an observer is logged and harms nobody: a counter that fails must not leave a client without its
    ending.
    """

    def __init__(self, *observers: Observer) -> None:
        self._lock = threading.Lock()
        self._all = observers  # replaced as a whole, under the lock; read from any thread

    def add(self, observer: Observer) -> None:
        with self._lock:
            self._all += (observer,)

    def remove(self, observer: Observer) -> None:
        """Remove an observer; other threads may be in the middle of calling it. Idempotent."""
        with self._lock:
            self._all = tuple(one for one in self._all if one is not observer)

    def request_added(self, request: Request) -> None:
        self._notify(request, "beginning", lambda observer: observer.request_added(request))

    def request_admitted(self, request: Request) -> None:
        self._notify(request, "admission", lambda observer: observer.request_admitted(request))

    def request_cancelled(self, request: Request) -> None:
        self._notify(request, "cancel", lambda observer: observer.request_cancelled(request))

    def request_ended(self, request: Request, ending: Ending) -> None:
        self._notify(request, "end", lambda observer: observer.request_ended(request, ending))

    def _notify(self, request: Request, moment: str, call: Callable[[Observer], None]) -> None:
        for observer in self._all:
            try:
                call(observer)
            except Exception:
                facts = {"request_id": request.id}
                logger.exception("an observer failed at the %s of request %s", moment, request.id, extra=facts)

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        for observer in self._all:
            observer.step_done(record, n_wasted)

    def first_token(self, request: Request, seconds: float) -> None:
        for observer in self._all:
            observer.first_token(request, seconds)

    def next_token(self, request: Request, seconds: float) -> None:
        for observer in self._all:
            observer.next_token(request, seconds)


class StepTrace:
    """The last steps, oldest first. Written by the engine thread; `snapshot` may be called from any thread."""

    def __init__(self, length: int) -> None:
        self._records: deque[StepRecord] = deque(maxlen=length)
        self.n_steps = 0

    def append(self, record: StepRecord) -> None:
        self._records.append(record)
        self.n_steps = record.number

    def snapshot(self) -> list[StepRecord]:
        # deque.copy() is one call of C code: no append can come between.
        return list(self._records.copy())
