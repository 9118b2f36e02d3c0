"""Everything that pyllmcancel raises.

```text
Error
 ├─ ModelLoadError        the file is not a model that this build can serve
 ├─ LoadCancelled         the progress callback returned False
 ├─ HubError              the hub does not have the requested model, or refuses it
 │   └─ HubUnreachable        … because it does not answer
 ├─ PlacementError        a model does not fit into memory, or on a device; the message says what would
 ├─ ContextError          no memory for the cells, or a model that cannot generate
 ├─ ContextBusy           a second thread entered a context during a step
 ├─ UsageError            an invalid call; nothing was changed (also a ValueError)
 ├─ InvalidRequestError   a request that can never be served in this form (also a ValueError)
 │   ├─ MediaError           … because of one of its pictures or sounds
 │   └─ ContextLengthError   … because its prompt does not fit into the context
 │       ├─ TextLengthError    … or a text exceeds the limit of one embedding
 │       └─ PairLengthError    … or a query and a document exceed the limit of one ranking
 ├─ ConstraintError       the constraint of one answer failed in the middle of it
 ├─ QueueFullError        a limit of waiting or remembered things is reached; try again later
 │   └─ LateError             … or the request would miss its deadline
 ├─ BusyError             the machine cannot do it at present, and the request is not at fault; try again later
 ├─ EngineClosedError     the engine is shutting down, is closed, or was left behind by a fork
 │   └─ EngineDiedError       … or its thread has died; `__cause__` is the error
 ├─ CoreAbortedError      an assertion of ggml failed in a step: the process is about to end
 ├─ RequestFailed         the computation of this request failed; other requests continue
 └─ RequestCancelled      the request was cancelled before its end; carries the reason
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.cancellation import reason_text

if TYPE_CHECKING:
    from pyllmcancel.cancellation import CancelReason, Deadline
    from pyllmcancel.events import Usage


class Error(Exception):
    """The base of all errors raised by this package."""


class ModelLoadError(Error):
    """The file cannot be served; the message quotes llama.cpp on why."""


class LoadCancelled(Error):  # noqa: N818 - reads as the event it is
    """Loading was cancelled by its progress callback."""


class HubError(Error):
    """The hub has no such model, refuses it, or gave something else."""


class HubUnreachable(HubError):  # noqa: N818
    """The hub cannot be reached, or gives an invalid answer; a cached copy may be used."""


class PlacementError(Error):
    """A model does not fit into memory or on a device; the message says what would. Nothing was loaded."""


class ContextError(Error):
    """The context could not be made."""


class ContextBusy(Error):  # noqa: N818
    """Another thread is inside a step of this context. Nothing was changed."""


class UsageError(Error, ValueError):
    """An invalid call, with these arguments or at this time. Nothing was changed."""


class InvalidRequestError(Error, ValueError):
    """A request that can never be served in this form.

    Parameters
    ----------
    message
        The mistake, in words for the client.
    param
        The field of the request that is at fault, if one is.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class MediaError(InvalidRequestError):
    """A picture or a sound cannot be taken.

    Attributes
    ----------
    index : int
        Its number in the request, from 0: the server says which field that is.
    too_large : bool
        True if it exceeds a limit, and is not at fault otherwise.
    """

    def __init__(self, message: str, index: int, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.index = index
        self.too_large = too_large


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room for a single generated token."""

    def __init__(
        self, n_prompt_tokens: int, n_ctx: int, param: str = "prompt", message: str = "", *, at_least: bool = False
    ) -> None:
        count = f"{'at least ' if at_least else ''}{n_prompt_tokens:,}"
        usual = f"the prompt has {count} tokens, but the context has room for {n_ctx - 1:,}"
        super().__init__(message or usual, param)
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx


class TextLengthError(ContextLengthError):
    """A text is longer than the model can embed at once."""

    def __init__(self, index: int, n_tokens: int, n_text_max: int) -> None:
        message = f"text {index} is too large: {n_tokens:,} tokens, but this model embeds at most {n_text_max:,}"
        super().__init__(n_tokens, n_text_max, "input", message)


class PairLengthError(ContextLengthError):
    """A query and a document are longer than the model can rank at once."""

    def __init__(self, index: int, n_tokens: int, n_text_max: int, param: str) -> None:
        message = (
            f"document {index} is too large: {n_tokens:,} tokens with the query, but this model ranks at most"
            f" {n_text_max:,}; `truncate` cuts documents"
        )
        super().__init__(n_tokens, n_text_max, param, message)


class ConstraintError(Error):
    """A constraint could not compute the next token's mask, or accept a token. The request fails, other requests
    continue.

    `param` is the field of the request that caused it, if one did.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(Error):
    """A limit of waiting or remembered things is reached: requests, sessions or holds."""


class LateError(QueueFullError):
    """A request would miss its deadline, even if all goes well; another can start after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BusyError(Error):
    """No helper process can be started, or gives an answer, at present. The request is not at fault."""


class EngineClosedError(Error):
    """The engine accepts no more requests."""


class EngineDiedError(EngineClosedError):
    """The engine's thread has died, because of a defect or a lack of memory: make another engine.

    The error is the `__cause__`.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the engine died: {error_text(cause)}")
        self.__cause__ = cause


def error_text(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class CoreAbortedError(Error):
    """An assertion of ggml failed in a step, perhaps in a back end's driver; the process is about to end."""


class RequestFailed(Error):  # noqa: N818
    """The computation of one request failed.

    Attributes
    ----------
    usage : Usage
        The tokens processed by then.
    param : str or None
        The field of the request that caused it; None for a fault of the model, the machine or the engine.
    """

    def __init__(self, message: str, usage: Usage, param: str | None = None) -> None:
        super().__init__(message)
        self.usage = usage
        self.param = param


class RequestCancelled(Error):  # noqa: N818
    """The request was cancelled; it must not be taken for a complete answer.

    Attributes
    ----------
    reason : CancelReason
        The first reason that was given.
    usage : Usage
        The tokens processed by then.
    deadline : Deadline or None
        The deadline that has passed, if that is the reason.
    retry_after : float or None
        For a request that waited for too long, the seconds that a new one would wait.
    """

    def __init__(
        self,
        reason: CancelReason,
        usage: Usage,
        deadline: Deadline | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"the request was cancelled ({reason_text(reason, deadline)})")
        self.reason = reason
        self.usage = usage
        self.deadline = deadline
        self.retry_after = retry_after
