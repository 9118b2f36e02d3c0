"""Errors as answers: their status and headers. The body's shape is that of the requested API.

A cancelled request is not a failure, but its answer must never look complete, and the OpenAI clients must not retry it
by themselves: a superseded request that is retried would supersede its successor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fastapi.responses import JSONResponse
from starlette.types import Scope

from pyllmcancel import errors
from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.server.errors.shapes import OPENAI, ErrorFacts, ErrorShape, shape_of
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.responses.storage.database import StoreError

RETRY_AFTER_SECONDS = 1
CLIENT_CLOSED_REQUEST = 499

# All other reasons have 499.
_CANCEL_STATUS = {CancelReason.DEADLINE: 504, CancelReason.SHUTDOWN: 503}


@dataclass(eq=False)
class ApiError(ErrorFacts, Exception):
    """An error as the client sees it."""

    extra_headers: dict[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        # A model that failed, or was unloaded, refuses the next request for the same reason.
        again = self.status in (429, 503) and self.code != "model_not_loaded"
        advice = {"Retry-After": str(RETRY_AFTER_SECONDS)} if again else {"x-should-retry": "false"}
        return advice | self.extra_headers

    def response(self, request_id: str, shape: ErrorShape = OPENAI) -> JSONResponse:
        # The id is set here as well: Starlette answers a defect of ours outside of the middleware that sets it.
        ids = dict.fromkeys(shape.id_headers, request_id)
        return JSONResponse(shape.word(self, request_id), self.status, self.headers() | ids)

    def response_to(self, scope: Scope) -> JSONResponse:
        """Make the answer in the shape of the requested API."""
        return self.response(exchange_of(scope).request_id, shape_of(scope))


def api_error(error: Exception) -> ApiError:
    """Return the client's view of an exception of ours."""
    match error:
        case ApiError():
            shown = error
        case StoreError(status=status, code=code, param=param):
            kind = "server_error" if status >= 500 else "invalid_request_error"
            shown = ApiError(status, str(error), kind, param, code)
        case errors.RequestCancelled(reason=reason, usage=usage, deadline=deadline, retry_after=seconds):
            status = 503 if deadline is Deadline.QUEUE else _CANCEL_STATUS.get(reason, CLIENT_CLOSED_REQUEST)
            shown = ApiError(status, str(error), "request_cancelled", None, reason, usage, deadline)
            shown.extra_headers = retry_after(seconds)
        case errors.RequestFailed(usage=usage, param=None):
            shown = ApiError(500, str(error), "server_error", None, "request_failed", usage)
        case errors.RequestFailed(usage=usage, param=param):
            shown = ApiError(400, str(error), param=param, code="invalid_request", usage=usage)
        case errors.ContextLengthError(param=param, n_prompt_tokens=n_prompt_tokens, n_ctx=n_ctx):
            sizes = (n_prompt_tokens, n_ctx)
            shown = ApiError(400, str(error), param=param, code="context_length_exceeded", sizes=sizes)
        case errors.InvalidRequestError(param=param):
            shown = ApiError(400, str(error), param=param, code="invalid_request")
        case errors.LateError(retry_after=seconds):
            shown = ApiError(429, str(error), "rate_limit_error", code="too_late", extra_headers=retry_after(seconds))
        case errors.QueueFullError():
            shown = ApiError(429, str(error), "rate_limit_error", code="queue_full")
        case errors.BusyError():
            shown = ApiError(503, str(error), "server_error", code="busy")
        case errors.EngineClosedError():
            # Unlike at a shutdown, there is nothing to wait for once the engine has died.
            status, code = (500, "engine_failed") if isinstance(error, errors.EngineDiedError) else (503, "shutdown")
            shown = ApiError(status, str(error), "server_error", code=code)
        case _:
            shown = ApiError(500, "internal server error", "server_error", code="internal_error")
    return shown


def unsupported(message: str) -> ApiError:
    return ApiError(501, message, "not_supported_error", code="not_supported")


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the header that says when to try again, if that is known."""
    return {} if seconds is None else {"Retry-After": str(max(RETRY_AFTER_SECONDS, math.ceil(seconds)))}
