"""llama-server's shape of an error: its `code` is the status. Facts without a field there stand beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from pydantic import Field

from pyllmcancel.server.wire.fields import ABSENT, Answer, absent
from pyllmcancel.server.wire.usage import UsageAnswer, usage_json

if TYPE_CHECKING:
    from pyllmcancel.server.errors.facts import ErrorFacts

LlamaErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "not_supported_error",
    "unavailable_error",
    "server_error",
    "exceed_context_size_error",
]
# All other statuses are `invalid_request_error` below 500, and `server_error` from there on.
TYPES: dict[int, LlamaErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "unavailable_error",
}


class LlamaErrorDetails(Answer):
    code: Annotated[int, Field(description="The HTTP status; in a stream, the status that the answer would have had.")]
    message: str
    type: LlamaErrorType
    param: Annotated[str | None, Field(description="Ours: the field at fault.")]
    reason: Annotated[str | None, Field(description="Ours: what is wrong, or why the request was cancelled.")]
    request_id: Annotated[str, Field(description="Ours.")]
    detail: NotRequired[Annotated[str | None, absent("Ours: the deadline that has passed.")]]
    n_prompt_tokens: NotRequired[
        Annotated[int, Field(default=0, description="With `exceed_context_size_error`: tokens of the prompt.")]
    ]
    n_ctx: NotRequired[
        Annotated[int, Field(default=0, description="With `exceed_context_size_error`: tokens of context.")]
    ]


class LlamaErrorAnswer(Answer):
    """llama-server's shape of an error; `usage` is there if the request had begun."""

    error: LlamaErrorDetails
    usage: NotRequired[Annotated[UsageAnswer | None, ABSENT]]


def llama_error(facts: ErrorFacts, request_id: str) -> LlamaErrorAnswer:
    error: LlamaErrorDetails = {
        "code": facts.status,
        "message": facts.message,
        "type": TYPES.get(facts.status, "invalid_request_error" if facts.status < 500 else "server_error"),
        "param": facts.param,
        "reason": facts.code,
        "request_id": request_id,
    }
    if facts.detail is not None:
        error["detail"] = facts.detail
    if facts.sizes is not None:
        error["type"] = "exceed_context_size_error"
        error["n_prompt_tokens"], error["n_ctx"] = facts.sizes
    return {"error": error} if facts.usage is None else {"error": error, "usage": usage_json(facts.usage)}
