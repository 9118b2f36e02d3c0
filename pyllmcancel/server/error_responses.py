"""Errors in OpenAI's shape: which status, which body, which headers.

A cancelled request is not a failure, but its answer must never look complete, and the OpenAI clients must not retry it
by themselves: a superseded request that is retried would supersede its successor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NotRequired

from fastapi.responses import JSONResponse
from pydantic import Field

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import (
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    QueueFullError,
    RequestCancelled,
    RequestFailed,
)
from pyllmcancel.server.wire import ABSENT, Answer

if TYPE_CHECKING:
    from pyllmcancel.events import Usage

RETRY_AFTER_SECONDS = 1
CLIENT_CLOSED_REQUEST = 499

_CANCEL_STATUS = {
    CancelReason.DISCONNECT: CLIENT_CLOSED_REQUEST,
    CancelReason.STALLED: CLIENT_CLOSED_REQUEST,
    CancelReason.SUPERSEDED: CLIENT_CLOSED_REQUEST,
    CancelReason.EXPLICIT: CLIENT_CLOSED_REQUEST,
    CancelReason.DEADLINE: 504,
    CancelReason.SHUTDOWN: 503,
}


class PromptTokensDetails(Answer):
    cached_tokens: Annotated[int, Field(ge=0, description="Those that came from the cache.")]


class UsageAnswer(Answer):
    """After a cancel: what had been processed by then."""

    prompt_tokens: Annotated[int, Field(ge=0)]
    completion_tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]
    prompt_tokens_details: PromptTokensDetails


class ErrorDetails(Answer):
    message: str
    type: str
    param: Annotated[str | None, Field(description="The field at fault.")]
    code: Annotated[str | None, Field(description="For programs: what is wrong, or why the request was cancelled.")]
    request_id: str
    # These two as llama-server has them.
    n_prompt_tokens: NotRequired[
        Annotated[int, Field(default=0, description="With `context_length_exceeded`: tokens of the prompt.")]
    ]
    n_ctx: NotRequired[
        Annotated[int, Field(default=0, description="With `context_length_exceeded`: tokens of context.")]
    ]


class ErrorAnswer(Answer):
    """OpenAI's shape; `usage` is there when the request had begun."""

    error: ErrorDetails
    usage: NotRequired[Annotated[UsageAnswer | None, ABSENT]]


@dataclass(eq=False)
class ApiError(Exception):
    """An error as the client sees it; `sizes`: tokens of a prompt that is too long, and of context."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    usage: Usage | None = None
    sizes: tuple[int, int] | None = None
    extra_headers: dict[str, str] = field(default_factory=dict)

    @property
    def retryable(self) -> bool:
        return self.status in (429, 503)

    def body(self, request_id: str) -> ErrorAnswer:
        """The JSON body, with the partial usage beside the error when the request had begun."""
        error: ErrorDetails = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
            "request_id": request_id,
        }
        if self.sizes is not None:
            error["n_prompt_tokens"], error["n_ctx"] = self.sizes
        return {"error": error} if self.usage is None else {"error": error, "usage": usage_json(self.usage)}

    def headers(self) -> dict[str, str]:
        advice = {"Retry-After": str(RETRY_AFTER_SECONDS)} if self.retryable else {"x-should-retry": "false"}
        return advice | self.extra_headers

    def response(self, request_id: str) -> JSONResponse:
        # The id here as well: Starlette answers a defect of ours from outside of the middleware that sets it.
        return JSONResponse(self.body(request_id), self.status, self.headers() | {"X-Request-Id": request_id})


def usage_json(usage: Usage) -> UsageAnswer:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def api_error(error: Exception) -> ApiError:
    """The client's view of an exception of ours."""
    match error:
        case ApiError():
            shown = error
        case RequestCancelled(reason=reason, usage=usage):
            shown = ApiError(_CANCEL_STATUS[reason], str(error), "request_cancelled", None, reason, usage)
        case RequestFailed(usage=usage, param=None):
            shown = ApiError(500, str(error), "server_error", None, "request_failed", usage)
        case RequestFailed(usage=usage, param=param):
            shown = ApiError(400, str(error), param=param, code="invalid_request", usage=usage)
        case ContextLengthError(param=param, n_prompt_tokens=n_prompt_tokens, n_ctx=n_ctx):
            sizes = (n_prompt_tokens, n_ctx)
            shown = ApiError(400, str(error), param=param, code="context_length_exceeded", sizes=sizes)
        case InvalidRequestError(param=param):
            shown = ApiError(400, str(error), param=param, code="invalid_request")
        case QueueFullError():
            shown = ApiError(429, str(error), "rate_limit_error", code="queue_full")
        case EngineClosedError():
            shown = ApiError(503, str(error), "server_error", code="shutdown")
        case _:
            shown = ApiError(500, "internal server error", "server_error", code="internal_error")
    return shown
