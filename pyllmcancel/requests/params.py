"""The parameters of generation, of a request and all its choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyllmcancel.cancellation import Deadline
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.sampling import SamplingParams

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory  # imports NumPy, which the command line must not

REPETITION_LIMIT = 256  # tokens; the limit of requests that ask for one without a number


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams:
    """The parameters of generation, for all choices of a request.

    Attributes
    ----------
    sampling
        The sampling parameters.
    n
        The number of choices per prompt.
    max_tokens
        Limit of the tokens to generate per choice; None goes on until the context is full, 0 computes the prompt only.
    stop
        Stop strings.
    timeout, queue_timeout, idle_timeout
        Deadlines in seconds: from arrival to the end, from arrival to the first slot, and between two tokens; None for
        the engine's default.
    constraint
        Makes the constraint that decides, token by token, which tokens are allowed; see
        `pyllmcancel.constraints.protocol`.
    prompt_logprobs
        Report logprobs of the prompt's tokens too, with as many alternatives as `sampling` says. The whole prompt is
        then computed, even if parts of it are cached.
    reuse_prefix
        Start from the longest cached prefix of the prompt.
    max_prompt_seconds, max_predict_seconds
        Time limits of the prompt, from admission, and of the answer, from its first token, once it has a line feed.
        Then the answer ends, with LENGTH: for editors that prefer a short completion to a late one.
    min_indent
        A line that is indented by fewer blanks ends the answer, with LENGTH. The line in which the answer begins is
        exempt.
    repetition_limit
        An answer that repeats itself ends, with LENGTH, when this number of tokens, and four periods, are the same;
        0: never. See `pyllmcancel.engine.repetition`.
    prompt_progress
        Send a delta after each step of the prompt, and one before the first.
    visible_tokens
        Control tokens that are spelled out in the text; others are invisible.
    all_visible
        All control tokens are visible.
    stop_tokens
        Tokens that end the answer, like the model's own end tokens.
    stop_shown
        The text ends with the stop string, or with the token of `stop_tokens`, that ended it.
    token_healing
        Take the last word of the prompt back, and have the answer begin with it, so that a prompt may end anywhere. The
        answer's text is what follows the prompt's. None: as the engine's configuration says, where it can be done.
    prediction
        Tokens that much of the answer is expected to consist of; a source of drafts.
    draft_max
        The limit of drafted tokens in one step, if it is below the engine's own; 0: nothing is drafted, and no token is
        taken from a past answer.
    slot
        With `EngineConfig.named_slots`, the request goes on from the prefix that the last request of this number left.
    adapters
        The numbers of the LoRA adapters to compute with, and their scales; others do not compute. None: as the engine
        is set when the request is submitted.
    """

    sampling: SamplingParams
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    timeout: float | None = None
    queue_timeout: float | None = None
    idle_timeout: float | None = None
    constraint: ConstraintFactory | None = None
    prompt_logprobs: bool = False
    reuse_prefix: bool = True
    max_prompt_seconds: float | None = None
    max_predict_seconds: float | None = None
    min_indent: int = 0
    repetition_limit: int = 0
    prompt_progress: bool = False
    visible_tokens: frozenset[int] = frozenset()
    all_visible: bool = False
    stop_tokens: frozenset[int] = frozenset()
    stop_shown: bool = False
    token_healing: bool | None = False
    prediction: tuple[int, ...] = ()
    draft_max: int | None = None
    slot: int | None = None
    adapters: tuple[tuple[int, float], ...] | None = None

    def shows(self, token: int) -> bool:
        """Return whether a control token is part of the text."""
        return self.all_visible or token in self.visible_tokens


NO_PARAMS = GenerationParams(sampling=SamplingParams())


def check_deadlines(params: GenerationParams) -> None:
    """Raise InvalidRequestError for a deadline before the arrival."""
    for name in Deadline:
        seconds: float | None = getattr(params, name)
        if seconds is not None and not seconds >= 0.0:  # NaN is refused too
            raise InvalidRequestError(f"{name} must not be negative", name)
