"""The events of a request for its reader: deltas, then one ending; and the sinks that take them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from pyllmcancel.cancellation import CancelReason


class RequestStatus(StrEnum):
    """The phase of a request. "Cancelling" is derived: cancelled and not yet FINISHED.

    PREPARING is from the arrival until the request is accepted, for example while its schema is being compiled.
    """

    PREPARING = "preparing"
    LOADING = "loading"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """The end of a choice or of a request. An answer is complete after STOP and LENGTH only."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Limit(StrEnum):
    """The limit that ended an answer with LENGTH, if it was neither the number of tokens nor the context."""

    PROMPT_TIME = "time limit of the prompt"
    ANSWER_TIME = "time limit of the answer"
    INDENT = "indentation"
    REPETITION = "repetition"


class Drafted(NamedTuple):
    """The tokens of answers that were drafted from one source, and those of them that were accepted.

    A token that was certain, and so was delivered without a computation, is drafted and accepted.
    """

    source: str
    n_drafted: int
    n_accepted: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of a request; after a cancel, those that had been processed by then.

    Attributes
    ----------
    prompt_tokens
        The tokens of the prompt that were computed or came from the cache.
    completion_tokens
        The tokens that were generated.
    cached_tokens
        The tokens of the prompt that came from the cache.
    drafts
        For each source of drafts its name, and the numbers of drafted and of accepted tokens. The request's prediction
        is a source even if nothing was drafted from it.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafts: tuple[Drafted, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs of one generated token: its own, and records (token, logprob) of the likeliest, likeliest first."""

    token: int
    logprob: float
    top: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Delta:
    """The text and the tokens that one step added to one choice.

    Attributes
    ----------
    index
        The number of the choice, counted from 0.
    text
        The text that the tokens complete. A character of several tokens comes with its last token.
    tokens
        The ids of the tokens.
    logprobs
        One for each token, for a request that asked for them.
    finish_reason
        The choice's end, in its last delta.
    stop_text
        The stop string that ended the choice, if one did.
    prompt_logprobs
        Come with the first delta of a choice that asked for them: one for every prompt token but the first, which
        nothing predicts.
    prompt_done
        The number of computed tokens of the prompt, for a request that asked for progress.
    is_encoding
        True while a picture or sound of the prompt is not encoded yet; only together with `prompt_done`.
    limit
        The limit behind LENGTH, if it was not the number of tokens.
    """

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_text: str | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_done: int | None = None
    is_encoding: bool = False
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The one terminal event of a request.

    Attributes
    ----------
    finish_reason
        STOP or LENGTH (of the last choice to end), CANCELLED, or ERROR.
    usage
        The tokens of the request until its end.
    limit
        The limit behind LENGTH, if it was not the number of tokens.
    cancel_reason
        The reason, when CANCELLED.
    error
        The error's message, when ERROR.
    param
        The field of the request that caused the error, if one did.
    phase
        The request's phase when it ended.
    cancel_latency
        Seconds from `cancel()` until the computation had stopped and the slot was free; None if not cancelled.
    """

    finish_reason: FinishReason
    usage: Usage
    phase: RequestStatus
    cancel_reason: CancelReason | None = None
    error: str | None = None
    param: str | None = None
    cancel_latency: float | None = None
    limit: Limit | None = None


Event = Delta | Ending


class Sink(Protocol):
    """The receiver of a request's events. `loop` is None for readers that are plain threads."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...

    @property
    def full(self) -> bool:
        """True if the reader leaves so much unread that generation should pause; read in any thread."""

    def put(self, event: Event) -> None:
        """Take one event: in `loop`'s thread if there is one, else in any."""


class NoSink:
    """The sink of a request that nobody reads yet."""

    loop = None
    full = False

    def put(self, event: Event) -> None:
        """Ignore the event."""


NO_SINK = NoSink()
