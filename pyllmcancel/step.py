"""The inputs and results of a step: the values that cross the boundary to the compiled module.

A step is one iteration of the scheduler and one ``llama_decode``. With divided cells that may be several ubatches.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# The limit of rows of logits in one step, besides one for each sequence: of prompt tokens whose logprobs are wanted,
# and of drafted tokens. Each row is as long as the vocabulary.
MOST_EXTRA_OUTPUTS = 32


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
    NO_MEMORY = 5


class StepItem(NamedTuple):
    """One sequence's part in a step: how many of its next uncommitted tokens to compute, and a draft.

    A `draft` is a guess of the tokens that follow the known ones; only an item that computes all of those may have one.
    """

    seq: int
    n_tokens: int
    draft: Sequence[int] = ()

    @property
    def n_rows(self) -> int:
        """The tokens that the step computes for the sequence."""
        return self.n_tokens + len(self.draft)


class SampledToken(NamedTuple):
    """A token that was sampled.

    `logprob` (natural logarithm) and `top_logprobs` (records of token and logprob, likeliest first) are there if the
    request asked for logprobs.
    """

    token: int
    logprob: float | None = None
    top_logprobs: NDArray[Any] | None = None


class StepRow(NamedTuple):
    """The results of one sequence from a step that returned OK.

    `n_tokens` is by how much the sequence's committed tokens have grown: less than nothing if a rejected draft could
    not be removed, and the whole sequence was. `sampled` are the tokens after the known ones: the accepted part of the
    draft, and one more. They are fewer, or none, if the known tokens were not all computed, a row of logits was at
    `fault`, or the request was cancelled meanwhile. `described` are token, logprob and alternatives of the prompt's
    tokens that this step's logits predict, if the request asked for those.
    """

    seq: int
    n_tokens: int
    sampled: tuple[SampledToken, ...] = ()
    fault: LogitFault = LogitFault.NONE
    described: tuple[tuple[int, float, NDArray[Any]], ...] = ()

    @property
    def token(self) -> int:
        """The first sampled token, or -1."""
        return self.sampled[0].token if self.sampled else -1


class GraphCounts(NamedTuple):
    """The graphs that a context has computed, as llama.cpp's scheduler sees them.

    `splits` are the parts of the last graph: each is computed by one device, and tensors are copied between them.
    `copies` are those that it keeps of each input, to compute several steps at once on several devices. `reused` counts
    the graphs so far that were used again, not built anew.
    """

    splits: int
    copies: int
    reused: int


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
