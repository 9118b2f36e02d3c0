"""The steps of generation: computed one after the other, or begun before the last one's results are taken.

The context may begin the next decode step by itself, in a thread of its own, while the engine thread takes the results
of the last one. One step is *ahead* at most; it has the same sequences, and computes one token of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.placement import CPU
from pyllmcancel.scheduling.workload import Steps
from pyllmcancel.step import StepItem

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyllmcancel._native import Context, Model
    from pyllmcancel.engine.drafts import Drafts
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.scheduling.scheduler import Scheduler
    from pyllmcancel.step import StepResult


class DecodeSteps(Steps):
    """Computes steps in a context. With `run_ahead` they may begin by themselves; by default they do where Python has a
    core to itself.
    """

    def __init__(self, context: Context, scheduler: Scheduler, drafts: Drafts, *, run_ahead: bool | None) -> None:
        super().__init__(context, scheduler.cost)
        self._context = context
        self._scheduler = scheduler
        self._drafts = drafts
        self._run_ahead = is_mostly_offloaded(context.model) if run_ahead is None else run_ahead
        if self._run_ahead:
            context.start_ahead()
        self._late: StepResult | None = None  # the result of the step ahead, if `come_to_rest` had to wait for it

    def compute(self, items: list[StepItem]) -> StepResult:
        fixed, per_token = self._cost.fit()
        ends = self._ends(items) if self._run_ahead else None
        return self._noted(self._context.step(items, fixed_cost=fixed, cost_per_token=per_token, ends=ends), items)

    def collect(self, *, goes_on: bool) -> StepResult:
        return self._noted(self._context.collect(goes_on=goes_on), self.ahead)

    def come_to_rest(self) -> None:
        """Wait for a step that is ahead, and let none follow it, before slots are given back."""
        if self.ahead:
            self._late = self.collect(goes_on=False)

    def take_late(self) -> StepResult | None:
        late, self._late = self._late, None
        return late

    def forbid_ahead(self) -> None:
        self._context.forbid_ahead()

    def allow_ahead(self) -> None:
        self._context.allow_ahead()

    def _noted(self, result: StepResult, items: list[StepItem]) -> StepResult:
        self.ahead = [StepItem(item.seq, 1) for item in items] if result.ahead else []
        if self.ahead:
            self._scheduler.note_ahead(self.ahead)
        self._drafts.learn(items, result)
        return result

    def _ends(self, items: list[StepItem]) -> list[tuple[int, Collection[int]]] | None:
        """Return when each sequence ends, if this step and the next one decode for all active choices; else None.

        Where drafts pay, the next step is planned, too.
        """
        choices = self._scheduler.active
        free = all(decodes_freely(choice) for choice in choices)
        if not free or len(items) < len(choices) or self._drafts.pay(choices):
            return None
        by_item = [self._scheduler.choice(item.seq) for item in items]
        return [(choice.max_tokens - len(choice.generated), choice.request.params.stop_tokens) for choice in by_item]


def is_mostly_offloaded(model: Model) -> bool:
    """Return whether Python has a core to itself while a step computes.

    Otherwise, with steps ahead, Python competes with compute threads.
    """
    n_layers = sum(model.layers_by_device.values())
    return model.is_offloaded and 2 * model.layers_by_device.get(CPU, 0) < n_layers


def decodes_freely(choice: Choice) -> bool:
    """Return whether a choice's next tokens need nothing but the compiled core, and no look at what comes first."""
    plain = choice.constraint is None and not choice.request.is_idle  # an idle one's step waits for a look at what came
    return plain and bool(choice.generated) and choice.n_pending == 1
