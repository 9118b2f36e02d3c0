"""Who watches an engine: metrics, traces, tests. Told by the thread that ends the computation, not by HTTP."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyllmcancel.events import Ending
    from pyllmcancel.request import Request


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it happened.

    Attributes
    ----------
    number
        Counts steps from 1.
    started_at
        On the monotonic clock, in seconds.
    seconds
        Duration of decode and sampling.
    sequences
        Per sequence: request id, choice index, phase, tokens.
    status
        ``ok``, ``aborted``, ``no_room``, ``invalid``, ``failed_alloc`` or ``failed_compute``.
    spared
        A member was cancelled, and the step finished for the others.
    survivors
        Sequences whose request was not cancelled.
    threads
        That computed it.
    """

    number: int
    started_at: float
    seconds: float
    sequences: tuple[tuple[str, int, str, int], ...]
    status: str
    spared: bool = False
    survivors: int = 0
    threads: int = 1

    @property
    def n_tokens(self) -> int:
        return sum(entry[3] for entry in self.sequences)


class Observer(Protocol):
    """Called by the engine; must be quick and must not raise."""

    def request_added(self, request: Request) -> None: ...
    def request_ended(self, request: Request, ending: Ending) -> None: ...
    def step_done(self, record: StepRecord, n_wasted: int) -> None: ...
    def first_token(self, request: Request, seconds: float) -> None: ...
    def next_token(self, request: Request, seconds: float) -> None: ...


class NullObserver:
    """Watches nothing."""

    def request_added(self, request: Request) -> None: ...
    def request_ended(self, request: Request, ending: Ending) -> None: ...
    def step_done(self, record: StepRecord, n_wasted: int) -> None: ...
    def first_token(self, request: Request, seconds: float) -> None: ...
    def next_token(self, request: Request, seconds: float) -> None: ...


class StepTrace:
    """The last steps, oldest first. Written by the engine thread; `snapshot` may be called from any."""

    def __init__(self, length: int) -> None:
        self._records: deque[StepRecord] = deque(maxlen=length)
        self.n_steps = 0

    def append(self, record: StepRecord) -> None:
        self._records.append(record)
        self.n_steps = record.number

    def snapshot(self) -> list[StepRecord]:
        # deque.copy() is one call of C code: no append can come between.
        return list(self._records.copy())
