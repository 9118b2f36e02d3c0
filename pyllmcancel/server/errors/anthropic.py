"""Anthropic's shape of an error, in answers and as the last event of a stream that broke off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from pydantic import Field

from pyllmcancel.server.anthropic.answer import MessageUsage, message_usage
from pyllmcancel.server.wire.fields import ABSENT, Answer, absent

if TYPE_CHECKING:
    from pyllmcancel.server.errors.facts import ErrorFacts

AnthropicErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "overloaded_error",
    "timeout_error",
]
# All other statuses are `invalid_request_error` below 500, and `api_error` from there on.
TYPES: dict[int, AnthropicErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Anthropic's clients recognise a prompt that is too long by this text.
TOO_LONG = "prompt is too long: {} tokens > {} maximum"


class AnthropicErrorDetails(Answer):
    type: AnthropicErrorType
    message: str
    param: Annotated[str | None, Field(description="Ours: the field at fault.")]
    code: Annotated[str | None, Field(description="Ours: what is wrong, or why the request was cancelled.")]
    detail: NotRequired[Annotated[str | None, absent("Ours: the deadline that has passed.")]]


class AnthropicErrorAnswer(Answer):
    """Anthropic's shape of an error; `usage`, which is ours, is there if the request had begun."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str
    usage: NotRequired[Annotated[MessageUsage | None, ABSENT]]


def anthropic_error(facts: ErrorFacts, request_id: str) -> AnthropicErrorAnswer:
    told: AnthropicErrorAnswer = {
        "type": "error",
        "error": {
            "type": TYPES.get(facts.status, "invalid_request_error" if facts.status < 500 else "api_error"),
            "message": facts.message if facts.sizes is None else TOO_LONG.format(*facts.sizes),
            "param": facts.param,
            "code": facts.code,
        },
        "request_id": request_id,
    }
    if facts.detail is not None:
        told["error"]["detail"] = facts.detail
    if facts.usage is not None:
        told["usage"] = message_usage(facts.usage)
    return told
