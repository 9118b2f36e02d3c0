"""The inputs and results of a step: the values that cross the boundary to the compiled module.

A step is one iteration of the scheduler and one ``llama_decode``. With divided cells that may be several ubatches.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The limit of prompt tokens whose logprobs one step gives: each costs a row of logits as long as the vocabulary.
MOST_DESCRIBED = 32


class StepStatus(IntEnum):
    """The status that ``llama_decode`` returned."""

    OK = 0
    ABORTED = 1
    NO_ROOM = 2
    INVALID = 3
    FAILED_ALLOC = 4
    FAILED_COMPUTE = 5


class LogitFault(IntEnum):
    """The reason why a row of logits could not be sampled."""

    NONE = 0
    NOT_FINITE = 1
    ALL_EQUAL = 2
    GRAMMAR = 3
    TOO_COMPLEX = 4


class StepItem(NamedTuple):
    """One sequence's part in a step: how many of its next uncommitted tokens to compute."""

    seq: int
    n_tokens: int


class StepRow(NamedTuple):
    """The results of one sequence from a step that returned OK.

    `token` is the sampled token, or -1 when the sequence's known tokens were not all computed, the logits were at
    fault, or the request had been cancelled by then. `logprob` (natural logarithm) and `top_logprobs` (records of
    token and logprob, likeliest first) are there if the request asked for logprobs. `described` are token, logprob and
    alternatives of the prompt's tokens that this step's logits predict, if the request asked for those.
    """

    seq: int
    n_tokens: int
    token: int = -1
    fault: LogitFault = LogitFault.NONE
    logprob: float | None = None
    top_logprobs: NDArray[Any] | None = None
    described: tuple[tuple[int, float, NDArray[Any]], ...] = ()


class StepResult(NamedTuple):
    """The outcome of a step; `rows` is empty unless `status` is OK.

    `spared` is True if a member was cancelled and the step finished for the others. `polls` counts the graph nodes
    computed. Times are in microseconds, and `began_us` is on the clock of `time.monotonic`. `n_threads` is the number
    of compute threads. `ahead` is True if the next step has begun, and is to be collected.
    """

    status: StepStatus
    rows: list[StepRow]
    spared: bool
    polls: int
    decode_us: int
    sample_us: int
    n_threads: int = 1
    began_us: int = 0
    ahead: bool = False
