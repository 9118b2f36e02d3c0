"""What every engine thread does, whatever its steps compute: turns, endings in time, isolation of failures.

Each turn: drop what was cancelled and whoever has left, take what may start, plan a step, compute it with the GIL
released, hand out what it brought. `engine_loop` generates this way, `embeddings.loop` makes vectors.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import said
from pyllmcancel.observer import StepRecord
from pyllmcancel.request import FinishReason, Request, RequestStatus
from pyllmcancel.step import StepStatus
from pyllmcancel.token_stream import Outbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyllmcancel.endings import Endings
    from pyllmcancel.observer import Observer, StepTrace
    from pyllmcancel.registry import Registry
    from pyllmcancel.scheduler import Occupancy
    from pyllmcancel.step import StepItem
    from pyllmcancel.step_cost import StepCostModel

logger = logging.getLogger("pyllmcancel.engine")

READY_AFTER = 0.1  # seconds without a request; a client that goes on at once does not wait for what is done then

R = TypeVar("R", bound=Request)


class Outcome(Protocol):
    """Of a step, as the compiled module tells it."""

    @property
    def status(self) -> StepStatus: ...
    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def spared(self) -> bool: ...
    @property
    def n_threads(self) -> int: ...


class Planner(Protocol):
    """What a scheduler of either kind can be asked."""

    cost: StepCostModel

    def occupancy(self) -> Occupancy: ...
    def plan(self) -> list[StepItem]: ...
    def resync(self, items: list[StepItem]) -> None: ...
    def suspect(self, seqs: Iterable[int]) -> None: ...
    def preempt_newest(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Part:
    """Whom an item of a step computes for."""

    request: Request
    index: int
    phase: str


class StepLoop(Generic[R]):
    """Runs in one thread, from :meth:`run`; nothing here may be called from another, but for `stalled_for`."""

    def __init__(
        self, registry: Registry, planner: Planner, endings: Endings, *, observer: Observer, trace: StepTrace
    ) -> None:
        self._registry = registry
        self._planner = planner
        self._endings = endings
        self._observer = observer
        self._trace = trace
        self._outbox = Outbox()
        self._running: list[R] = []
        self._n_steps = 0
        # Written by the engine thread, replaced whole; read from any.
        self.occupancy = planner.occupancy()
        # Monotonic seconds; written by the engine thread, read by whoever asks after its health.
        self._step_began: float | None = None

    # -- what a kind of loop adds -------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """End what is not to go on."""
        for request in self._leavers():
            self._end(request, FinishReason.CANCELLED)

    def _admit(self) -> None:
        """Start whatever waits and may start."""
        raise NotImplementedError

    def _compute(self, items: list[StepItem], fixed_cost: float, cost_per_token: float) -> Outcome:
        """The step itself."""
        raise NotImplementedError

    def _take_rows(self, rows: Sequence[Any]) -> None:
        """Hand out what a step brought."""
        raise NotImplementedError

    def _part(self, item: StepItem) -> Part:
        raise NotImplementedError

    def _rest(self) -> None:
        """No step follows for now: leave the cores to others."""
        raise NotImplementedError

    def _tend(self) -> None:
        """Before each step, and after all news: what takes some milliseconds now and then."""

    def _make_ready(self) -> bool:
        """Nobody has come for a while: do some of what the next one would wait for; False if nothing is left."""
        return False

    def _end(self, request: Any, finish_reason: FinishReason, *, keep: bool = True, error: str | None = None) -> None:
        """End a request before it is complete: the slots first, then the event."""
        raise NotImplementedError

    def _plan(self) -> list[StepItem]:
        return self._planner.plan()

    # -- turns --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until the registry is closed and everything has ended."""
        while self._running or self._wait_for_work():
            self.turn()

    def turn(self) -> None:
        """One iteration; at most one step, whose news go out when the next turn, or the wait for it, begins."""
        # Before admitting: a request that supersedes another finds its slot, and its cells, given back. And whoever
        # leaves is told before anything is copied for those who come.
        self._let_go()
        self._publish()
        self._admit()
        items = self._plan()
        # Nor need whoever was ended by the planning wait for the step of the others.
        self._publish()
        if items:
            self._tend()
            # Once more, after all that takes time: who left meanwhile would be computed for.
            if self._leavers():
                self._planner.resync(items)  # as after any step that does not count
            else:
                self._step(items)

    def _leavers(self) -> list[R]:
        """Those who run, and are not wanted any more."""
        return [request for request in self._running if self._has_left(request)]

    def _has_left(self, request: Request) -> bool:
        """Whether it was cancelled, or its reader shows to have left.

        An event loop that shares the GIL and two busy cores with the computation tells of a hang-up some milliseconds
        late: by then the next step would have begun, and in company it is finished.
        """
        if request.sink.reader_has_left():
            request.cancellation.request(CancelReason.DISCONNECT)
        return request.cancellation.requested

    def stalled_for(self) -> float:
        """Seconds since the running step began; 0 between steps. May be called from any thread."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def bury(self, died_of: BaseException) -> None:
        """The thread is about to die: nobody must wait for it. What fails here in its turn is to be tried again."""
        self._step_began = None
        self._outbox.flush()  # the thread may have died while it told an ending
        failure: Exception | None = None
        for request in self._registry.take_all(died_of):
            try:
                self._endings.bury(request, self._outbox, f"the engine died: {said(died_of)}")
            except Exception as error:
                failure = error  # the others end all the same
        self._outbox.flush()
        if failure is not None:
            raise failure

    def _wait_for_work(self) -> bool:
        """Whether there is any, and not the end."""
        self._publish()
        has_work = self._registry.wait_for_work(0.0)
        if has_work is None:
            self._rest()
            has_work = self._registry.wait_for_work(READY_AFTER)
        while has_work is None and self._make_ready():
            self._publish()
            has_work = self._registry.wait_for_work(0.0)
        return self._registry.wait_for_work() is True if has_work is None else has_work

    def _publish(self) -> None:
        self.occupancy = self._planner.occupancy()
        self._outbox.flush()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _step(self, items: list[StepItem]) -> None:
        began = self._step_began = time.monotonic()
        result = self._compute(items, *self._planner.cost.fit())
        self._step_began = None
        seconds = time.monotonic() - began
        self._record(items, result, began, seconds)
        match result.status:
            case StepStatus.OK:
                self._planner.cost.observe(sum(item.n_tokens for item in items), seconds)
                self._take_rows(result.rows)
            case StepStatus.ABORTED:
                self._planner.resync(items)
            case StepStatus.NO_ROOM:
                if not self._planner.preempt_newest():
                    self._fail(items, "the context has no room for this request")
            case StepStatus.INVALID | StepStatus.FAILED_ALLOC | StepStatus.FAILED_COMPUTE:
                self._planner.resync(items)
                self._find_culprit(items, result.status)

    def _find_culprit(self, items: list[StepItem], status: StepStatus) -> None:
        """One sequence's bad luck is not its neighbours': compute each alone, and fail the one that fails alone."""
        logger.warning("step %d of %d sequences failed: %s", self._n_steps, len(items), status.name.lower())
        if len(items) > 1:
            self._planner.suspect(item.seq for item in items)
        else:
            self._fail(items, f"the computation failed ({status.name.lower()})")

    def _fail(self, items: list[StepItem], error: str) -> None:
        for request in {self._part(item).request for item in items}:
            self._end(request, FinishReason.ERROR, keep=False, error=error)

    def _never_launched(self, request: Request) -> bool:
        """End a request that was cancelled between its leaving the queue and now, or whose reader has left."""
        if self._has_left(request):
            self._endings.conclude(request, FinishReason.CANCELLED, self._outbox)
        return request.status is RequestStatus.FINISHED

    def _record(self, items: list[StepItem], result: Outcome, began: float, seconds: float) -> None:
        self._n_steps += 1
        sequences = []
        n_wasted = n_survivors = 0
        for item in items:
            part = self._part(item)
            sequences.append((part.request.id, part.index, part.phase, item.n_tokens))
            cancelled = part.request.cancellation.requested
            n_survivors += not cancelled
            if cancelled or result.status is StepStatus.ABORTED:
                n_wasted += item.n_tokens
        status = result.status.name.lower()
        record = StepRecord(
            self._n_steps, began, seconds, tuple(sequences), status, result.spared, n_survivors, result.n_threads
        )
        self._trace.append(record)
        self._observer.step_done(record, n_wasted)
