"""OpenAI's shape of an error, which this server's own endpoints use, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NotRequired

from pydantic import Field

from pyllmcancel.server.wire.fields import ABSENT, Answer, absent
from pyllmcancel.server.wire.usage import UsageAnswer, usage_json

if TYPE_CHECKING:
    from pyllmcancel.server.errors.facts import ErrorFacts


class ErrorDetails(Answer):
    message: str
    type: str
    param: Annotated[str | None, Field(description="The field at fault.")]
    code: Annotated[str | None, Field(description="For programs: what is wrong, or why the request was cancelled.")]
    request_id: str
    detail: NotRequired[Annotated[str | None, absent("Ours: the deadline that has passed.")]]
    # These two are llama-server's.
    n_prompt_tokens: NotRequired[
        Annotated[int, Field(default=0, description="With `context_length_exceeded`: tokens of the prompt.")]
    ]
    n_ctx: NotRequired[
        Annotated[int, Field(default=0, description="With `context_length_exceeded`: tokens of context.")]
    ]


class ErrorAnswer(Answer):
    """OpenAI's shape of an error; `usage` is there if the request had begun."""

    error: ErrorDetails
    usage: NotRequired[Annotated[UsageAnswer | None, ABSENT]]


def openai_error(facts: ErrorFacts, request_id: str) -> ErrorAnswer:
    error: ErrorDetails = {
        "message": facts.message,
        "type": facts.type,
        "param": facts.param,
        "code": facts.code,
        "request_id": request_id,
    }
    if facts.detail is not None:
        error["detail"] = facts.detail
    if facts.sizes is not None:
        error["n_prompt_tokens"], error["n_ctx"] = facts.sizes
    return {"error": error} if facts.usage is None else {"error": error, "usage": usage_json(facts.usage)}
