"""The contract between the loop and what an engine computes: generation, or embeddings.

The loop calls the workload, in the engine thread; a workload calls neither the loop nor the readers. It returns
updates, which the loop publishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyllmcancel.cancellation import Flag
    from pyllmcancel.events import Delta, FinishReason
    from pyllmcancel.requests.observer import Observer
    from pyllmcancel.requests.request import Request
    from pyllmcancel.scheduling.scheduler import Occupancy
    from pyllmcancel.scheduling.step_cost import StepCostModel
    from pyllmcancel.step import StepItem, StepStatus


class Progress(NamedTuple):
    """A delta for a request's reader; the request goes on."""

    request: Request
    delta: Delta


class Finished(NamedTuple):
    """A request that is over, and whose slots are free; `last` is the delta that completes its answer."""

    request: Request
    finish_reason: FinishReason
    last: Delta | None = None
    error: str | None = None
    param: str | None = None  # the field of the request that caused the error


Update = Progress | Finished


@dataclass(frozen=True, slots=True)
class StepMember:
    """The choice or the text that an item of a step computes for, with its request and its phase."""

    request: Request
    index: int
    phase: str


class StepOutcome(Protocol):
    """The outcome of a step, from the compiled module."""

    @property
    def status(self) -> StepStatus: ...
    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def spared(self) -> bool: ...
    @property
    def n_threads(self) -> int: ...


class AheadOutcome(StepOutcome, Protocol):
    """The outcome of a step that had begun by itself; times are in microseconds, `began_us` of `time.monotonic`."""

    @property
    def began_us(self) -> int: ...
    @property
    def decode_us(self) -> int: ...
    @property
    def sample_us(self) -> int: ...


class StepScheduler(Protocol):
    """The part of a scheduler that the loop uses."""

    @property
    def cost(self) -> StepCostModel: ...
    @property
    def n_preempted(self) -> int: ...

    def occupancy(self) -> Occupancy: ...

    def holds(self, seq: int) -> bool:
        """Return whether anything computes in `seq`."""

    def resync(self, items: list[StepItem]) -> None:
        """Take over what the compiled core has committed, after a step that did not count."""

    def suspect(self, seqs: Iterable[int]) -> None:
        """Compute each of these sequences of a failed step alone, next."""

    def recover_from_no_room(self) -> bool:
        """Make room after the compiled core found none; False if there is nothing to evict or preempt."""


class Workload(Protocol):
    """The part of generation and of embeddings that the loop uses. Called by the engine thread only, but for
    `forbid_ahead`.
    """

    @property
    def scheduler(self) -> StepScheduler: ...

    def expire(self, requests: Iterable[Request]) -> list[Update]:
        """Finish running requests that have exceeded a time limit of their own."""

    def pause(self, requests: Sequence[Request], *, foreground_comes: bool) -> None:
        """Pause running requests that cannot go on now, and resume those that can: a request is paused while its sink
        is full, and an idle one if `foreground_comes`, or while foreground requests run.
        """

    def choose(self, heads: Sequence[Request]) -> Request | None:
        """Return which of these waiting requests, the next one of each owner, starts now; None if none can.

        Called with the registry's lock held, so it must be quick. `admit` follows for the returned request, unless that
        request is cancelled in between.
        """

    def admit(self, request: Request, observer: Observer) -> list[Update]:
        """Take over a request that has left the queue."""

    def plan(self, observer: Observer) -> tuple[list[StepItem], list[Update]]:
        """Return the next step, empty when nothing runs, and updates: starts, and requests that fail before the
        step.
        """

    def computes(self, request: Request) -> bool:
        """Return whether a step can compute for this running request: not while it is paused, or waits for another
        thread, which wakes the registry when the wait is over.
        """

    def maintain(self) -> None:
        """Do cache housekeeping that takes some milliseconds now and then; called before a step, after all events."""

    def member(self, item: StepItem) -> StepMember: ...

    def flag(self) -> Flag:
        """Make a flag for `give_way`."""

    def give_way(self, flag: Flag) -> None:
        """Have the next step abort once the flag is raised."""

    def compute(self, items: list[StepItem]) -> StepOutcome:
        """Compute the step, with the GIL released."""

    def take(self, rows: Sequence[Any], observer: Observer) -> list[Update]:
        """Take over the results of a step. Choices whose slots are given back before are ignored."""

    # -- steps that begin before the last one's results are taken. While one is `ahead`, only what is said to be allowed
    #    then may be called.

    @property
    def ahead(self) -> list[StepItem]:
        """The step that has begun by itself; empty if none has. Read it after `compute` and `collect`."""

    def is_steady(self, requests: Iterable[Request]) -> bool:
        """Return whether yet another step may follow the one ahead, because nothing needs a turn at rest.

        This call is allowed beside that step.
        """

    def collect(self, *, goes_on: bool) -> AheadOutcome:
        """Wait for the step ahead; with `goes_on` another may follow."""

    def take_late(self) -> AheadOutcome | None:
        """Return the outcome of the step ahead, if `take` had to wait for it because slots were to be given back.

        Returns None otherwise. This call is allowed beside that step.
        """

    def forbid_ahead(self) -> None:
        """Prevent steps from beginning by themselves until `allow_ahead`; may be called from any thread."""

    def allow_ahead(self) -> None:
        """Take back earlier calls of `forbid_ahead`: only later ones keep a step from beginning by itself."""

    def release(self, request: Request, *, keep: bool) -> None:
        """Give back the slots of a request that ends before it is complete; with `keep`, its cells stay cached."""

    def rest(self) -> None:
        """Let the compute threads sleep: no step follows for now."""

    def maintain_idle(self) -> bool:
        """Do cache housekeeping while no request runs or waits; False if nothing is left to do."""

    def close(self) -> None:
        """Save what outlives the process; called once, after everything has ended."""
