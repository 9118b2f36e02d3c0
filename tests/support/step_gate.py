"""Where the steps of a fake context wait until a test lets them finish, and where its abort policy is applied.

The policy is that of ``native/step/abort_gate.cpp``, read at the points where the compiled core polls: before the first
node, whenever a member's flag is raised, and whenever the test moves the step on.
"""

import os
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyllmcancel.errors import ContextBusy
from pyllmcancel.step import StepItem, StepStatus
from tests.support.device import ON_DEVICE
from tests.support.fake_model import CancelFlag

N_POLLS = 100  # graph nodes of a whole step
# Seconds; nothing here takes more than milliseconds, but on a device that is the processor, or with a sanitizer
# on a busy machine.
TEST_LIMIT = 300.0 if ON_DEVICE or "PYLLMCANCEL_SANITIZED" in os.environ else 60.0


def worth_aborting(n_tokens: int, n_surviving: int, done: float, *, fixed_cost: float, cost_per_token: float) -> bool:
    redo = fixed_cost + cost_per_token * n_surviving if n_surviving else 0.0
    return (1.0 - done) * (fixed_cost + cost_per_token * n_tokens) > redo or not n_surviving


@dataclass(slots=True)
class HeldStep:
    """A step that has begun."""

    items: tuple[StepItem, ...]
    flags: tuple[CancelFlag, ...]
    fixed_cost: float
    cost_per_token: float
    only_unanimous: bool
    first_of_context: bool
    abortable: bool
    way: CancelFlag | None = None  # raised by those whom the step gives way to
    progress: float = 1 / N_POLLS  # in [0, 1]; written by the test, under the gate's lock

    @property
    def cancelled(self) -> list[StepItem]:
        return [item for item, flag in zip(self.items, self.flags, strict=True) if flag.is_set()]

    @property
    def aborts(self) -> bool:
        """Return the abort policy's decision for the present flags."""
        cancelled = self.cancelled
        if self.abortable and self.way is not None and self.way.is_set():
            return True
        if not cancelled or not self.abortable:
            return False
        if len(cancelled) == len(self.items):
            return True
        if self.only_unanimous or self.first_of_context:
            return False
        n_tokens = sum(item.n_tokens for item in self.items)
        n_surviving = n_tokens - sum(item.n_tokens for item in cancelled)
        return worth_aborting(
            n_tokens, n_surviving, self.progress, fixed_cost=self.fixed_cost, cost_per_token=self.cost_per_token
        )

    @property
    def polls(self) -> int:
        return max(1, round(self.progress * N_POLLS))


class StepGate:
    """Open at first: steps run through. Once held, every step waits here for its :meth:`let_through`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        # All guarded by the condition.
        self._holding = False
        self._let_through = 0
        self._current: HeldStep | None = None

    # -- the test's side ----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on steps wait."""
        with self.changed:
            self._holding = True

    def open(self) -> None:
        with self.changed:
            self._holding = False
            self.changed.notify_all()

    def let_through(self) -> None:
        with self.changed:
            self._let_through += 1
            self.changed.notify_all()

    def move_on(self, progress: float) -> None:
        """Compute the held step as far as `progress`, in [0, 1]."""
        with self.changed:
            if self._current is not None:
                self._current.progress = progress
                self.changed.notify_all()

    def held(self) -> HeldStep | None:
        """The step that waits here and has no reason to go on; call it with `changed` locked, or in a quiet moment."""
        step = self._current
        if step is None or not self._holding or self._let_through or step.aborts:
            return None
        return step

    def wait_held(self) -> HeldStep:
        """Block until a step waits here."""
        with self.changed:
            held = self.changed.wait_for(self.held, TEST_LIMIT)
            assert held is not None, "no step began"
            return held

    def wake(self) -> None:
        """Have waiting threads look at their conditions again."""
        with self.changed:
            self.changed.notify_all()

    # -- the fake context's side --------------------------------------------------------------------------------------

    def run(self, step: HeldStep) -> bool:
        """Compute a step; False if it was aborted."""
        flags = step.flags if step.way is None else (*step.flags, step.way)
        for flag in flags:
            flag.watch(self.wake)
        try:
            return self._run(step)
        finally:
            for flag in flags:
                flag.unwatch(self.wake)

    def _run(self, step: HeldStep) -> bool:
        with self.changed:
            self._current = step
            self.changed.notify_all()
            let_go: Callable[[], bool] = lambda: not self._holding or self._let_through > 0  # noqa: E731
            self.changed.wait_for(lambda: step.aborts or let_go())
            self._current = None
            aborted = step.aborts
            if self._let_through and not aborted:
                self._let_through -= 1
            if not aborted:
                step.progress = 1.0
            return not aborted


class GatedSteps:
    """The base of the fake context and the fake embedder: one thread at a time, and steps that go through a gate."""

    faults: Mapping[tuple[int, ...], object]  # by the tokens that a sequence begins with

    def __init__(self, *, n_threads: int, abortable: bool, keeps_truth: bool) -> None:
        self.n_threads = n_threads
        self._abortable = abortable
        self._keeps_truth = keeps_truth
        self._busy = threading.Lock()
        self._first_step = True
        self._way: CancelFlag | None = None
        self.gate = StepGate()  # this and what follows is for tests
        self.next_status: deque[StepStatus] = deque()  # of the next steps, whatever they hold
        self.step_cost: tuple[float, float] | None = None
        self.n_rests = 0

    @abstractmethod
    def _at(self, seq: int) -> Any: ...
    @abstractmethod
    def _lose(self, seq: int) -> None:
        """Forget what a sequence has computed, which an abort has left untrue."""

    def give_way(self, flag: CancelFlag) -> None:
        self._way = flag

    def rest(self) -> None:
        with self._entered():
            self.n_rests += 1

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise ContextBusy("a step is running on this context in another thread")
        try:
            yield
        finally:
            self._busy.release()

    def _held(self, parts: tuple[StepItem, ...], costs: tuple[float, float], *, only_unanimous: bool) -> HeldStep:
        flags = tuple(flag for part in parts if (flag := self._at(part.seq).flag) is not None)
        way, self._way = self._way, None
        return HeldStep(parts, flags, *costs, only_unanimous, self._first_step, self._abortable, way)

    def _run(self, held: HeldStep) -> StepStatus:
        """Compute a step as far as its status; what an abort has left untrue is lost."""
        status = self._status(held.items) if self.gate.run(held) else StepStatus.ABORTED
        if status is StepStatus.OK:
            self._first_step = False
        elif status is not StepStatus.NO_ROOM and not self._keeps_truth:
            for part in held.items:
                self._lose(part.seq)
        return status

    def _fault(self, seq: int, kind: type) -> Any:
        tokens = tuple(self._at(seq).tokens)
        found = (fault for prompt, fault in self.faults.items() if tokens[: len(prompt)] == prompt)
        return next((fault for fault in found if isinstance(fault, kind)), None)

    def _status(self, parts: tuple[StepItem, ...]) -> StepStatus:
        if self.next_status:
            return self.next_status.popleft()
        found = (self._fault(part.seq, StepStatus) for part in parts)
        return next((status for status in found if status is not None), StepStatus.OK)
