"""Generation and embeddings as the loop sees them: their facts, their steps, and the updates that they return.

The loop calls the workload, its scheduler and its steps, in the engine thread; these call neither the loop nor the
readers. They return updates, which the loop publishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.cancellation import Cancellation
from pyllmcancel.errors import UsageError
from pyllmcancel.requests.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from pyllmcancel._native import CancelFlag, Context, Embedder, Model
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.drafting.past_answers import PastAnswers
    from pyllmcancel.events import Delta, FinishReason
    from pyllmcancel.media.library import MediaLibrary
    from pyllmcancel.pooling import EmbedResult, Pooling
    from pyllmcancel.requests.adapter_table import AdapterTable
    from pyllmcancel.requests.request import Origin
    from pyllmcancel.scheduling.disk_floor import DiskFloor
    from pyllmcancel.scheduling.scheduler import Capacity
    from pyllmcancel.scheduling.step_cost import StepCostModel
    from pyllmcancel.step import StepItem, StepResult


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Facts:
    """The facts of an engine, which stay the same while it runs. `Engine` and each stand-in of it have these fields."""

    model: Model
    config: EngineConfig
    adapters: AdapterTable  # the LoRA adapters that requests may use
    n_ctx: int  # the limit of one choice's tokens, prompt and answer together, or of one text's
    capacity: Capacity
    n_slots: int  # slots have numbers below this one: those of the running requests, and of idle prefixes
    varies_because: str | None  # why the last bits of a result may depend on other requests; None if they do not
    media: MediaLibrary | None = None  # makes prompts with pictures and sounds, if the model has a projector
    draft_sources: tuple[str, ...] = ()
    # A text's result: a vector, one of each token, or scores. This and the next are None if the model generates.
    pooling: Pooling | None = None
    n_embd: int | None = None  # the length of an embedding, or the number of a text's scores


class Steps:
    """The steps of a workload, computed one after the other. Used by the engine thread only, but for `forbid_ahead`.

    `pyllmcancel.engine.steps` has those that may begin before the last one's results are taken. While one is ahead,
    `take_late` and `collect` may be called, and `Workload.is_steady`.
    """

    def __init__(self, core: Context | Embedder, cost: StepCostModel) -> None:
        self._core = core
        self._cost = cost
        # The step that has begun by itself; empty if none has. It is read after `compute` and `collect`.
        self.ahead: list[StepItem] = []

    def compute(self, items: list[StepItem]) -> StepResult | EmbedResult:
        """Compute the step, with the GIL released."""
        fixed, per_token = self._cost.fit()
        return self._core.step(items, fixed_cost=fixed, cost_per_token=per_token)

    def collect(self, *, goes_on: bool) -> StepResult:
        """Wait for the step ahead; with `goes_on` another may follow."""
        raise UsageError("no step is ahead")

    def take_late(self) -> StepResult | None:
        """Return the outcome of the step ahead, if `Generation.take` had to wait for it because slots were to be given
        back.
        """
        return None

    def forbid_ahead(self) -> None:
        """Prevent steps from beginning by themselves until `allow_ahead`; may be called from any thread."""

    def allow_ahead(self) -> None:
        """Take back earlier calls of `forbid_ahead`: only later ones keep a step from beginning by itself."""


class Workload:
    """The base of generation and of embeddings. Used by the engine thread only."""

    native: Any  # the module that has the core's types
    new_flag: Callable[[], CancelFlag]  # for a request, or for a step that gives way; may be called from any thread
    facts: Facts
    request_type: type[Request] = Request
    disk: DiskFloor | None = None  # where prefixes survive a restart, if they do
    past_answers: PastAnswers | None = None  # which are remembered to draft others from, if there are any
    n_generated = 0  # tokens so far, of all requests; written by the engine thread, read by any

    def request(self, **origin: Unpack[Origin]) -> Request:
        """Make a request with a flag of its own, which is to be filled; may be called from any thread."""
        return self.request_type(Cancellation(self.new_flag()), **origin)

    def expire(self, _requests: Iterable[Request]) -> list[Update]:
        """Finish running requests that have exceeded a time limit of their own."""
        return []

    def computes(self, request: Request) -> bool:
        """Return whether a step can compute for this running request: not while it is paused, or waits for another
        thread, which wakes the registry when the wait is over.
        """
        return not request.paused

    def is_steady(self, _requests: Iterable[Request]) -> bool:
        """Return whether yet another step may follow the one ahead, because nothing needs a turn at rest."""
        return False

    def close(self) -> None:
        """Save what outlives the process; called once, after everything has ended."""
