"""Where the steps of a fake context wait until a test lets them finish, and where its abort policy is applied.

The policy is that of ``native/step/abort_gate.cpp``, read at the points where the compiled core polls: before the first
node, whenever a member's flag is raised, and whenever the test moves the step on.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyllmcancel.step import StepItem
from tests.support.device import ON_DEVICE
from tests.support.fake_native import CancelFlag

N_POLLS = 100  # graph nodes of a whole step
# Seconds; nothing here takes more than milliseconds, but on a device that is the processor, or with a sanitizer
# on a busy machine.
TEST_LIMIT = 300.0 if ON_DEVICE or "PYLLMCANCEL_SANITIZED" in os.environ else 60.0


def worth_aborting(
    n_tokens: int, n_surviving_tokens: int, done: float, *, fixed_cost: float, cost_per_token: float
) -> bool:
    redo = fixed_cost + cost_per_token * n_surviving_tokens if n_surviving_tokens else 0.0
    return (1.0 - done) * (fixed_cost + cost_per_token * n_tokens) > redo or not n_surviving_tokens


@dataclass(slots=True)
class HeldStep:
    """A step that has begun.

    Attributes
    ----------
    progress
        Share of the step that is computed, in [0, 1]. Written by the test, under the gate's lock.
    """

    items: tuple[StepItem, ...]
    flags: tuple[CancelFlag, ...]
    fixed_cost: float
    cost_per_token: float
    only_unanimous: bool
    first_of_context: bool
    abortable: bool
    way: CancelFlag | None = None  # raised by those whom the step gives way to
    progress: float = 1 / N_POLLS

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
            if not self.changed.wait_for(lambda: self.held() is not None, TEST_LIMIT):
                raise TimeoutError("no step began")
            assert self._current is not None
            return self._current

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
