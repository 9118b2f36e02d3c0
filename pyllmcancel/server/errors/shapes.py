"""The facts of an error, and its shape in each API: that of the requested endpoint, also where no handler ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from starlette.datastructures import Headers
from starlette.types import Scope

from pyllmcancel.events import Usage
from pyllmcancel.server.anthropic.answer import MessageUsage, message_usage
from pyllmcancel.server.wire.fields import ABSENT, Answer, absent
from pyllmcancel.server.wire.usage import UsageAnswer, usage_json


@dataclass(eq=False)
class ErrorFacts:
    """The facts of an error that its client needs."""

    status: int
    message: str
    type: str = "invalid_request_error"  # OpenAI's word for the kind; other APIs have words of their own, by the status
    param: str | None = None  # the field at fault
    code: str | None = None  # for programs: the kind of mistake, or the reason of the cancel
    usage: Usage | None = None  # the tokens processed so far, if the request had begun
    detail: str | None = None  # the deadline that has passed, if that is the reason of the cancel
    sizes: tuple[int, int] | None = None  # tokens of a prompt that is too long, and of the context


class FurtherDetails(Answer):
    """The details that few errors have. The last two are llama-server's."""

    detail: NotRequired[Annotated[str | None, absent("Ours: the deadline that has passed.")]]
    n_prompt_tokens: NotRequired[Annotated[int, Field(default=0, description="If a prompt is too long: its tokens.")]]
    n_ctx: NotRequired[Annotated[int, Field(default=0, description="If a prompt is too long: tokens of context.")]]


class ErrorDetails(FurtherDetails):
    message: str
    type: str
    param: Annotated[str | None, Field(description="The field at fault.")]
    code: Annotated[str | None, Field(description="For programs: what is wrong, or why the request was cancelled.")]
    request_id: str


class WithUsage(Answer):
    usage: NotRequired[Annotated[UsageAnswer | None, ABSENT]]


class ErrorAnswer(WithUsage):
    """OpenAI's shape of an error; `usage` is there if the request had begun."""

    error: ErrorDetails


def further(facts: ErrorFacts) -> FurtherDetails:
    found: FurtherDetails = {} if facts.detail is None else {"detail": facts.detail}
    if facts.sizes is not None:
        found["n_prompt_tokens"], found["n_ctx"] = facts.sizes
    return found


def with_usage(facts: ErrorFacts) -> WithUsage:
    return {} if facts.usage is None else {"usage": usage_json(facts.usage)}


def openai_error(facts: ErrorFacts, request_id: str) -> ErrorAnswer:
    error: ErrorDetails = {
        "message": facts.message,
        "type": facts.type,
        "param": facts.param,
        "code": facts.code,
        "request_id": request_id,
        **further(facts),
    }
    return {"error": error, **with_usage(facts)}


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
LLAMA_TYPES: dict[int, LlamaErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "unavailable_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "unavailable_error",
}


class LlamaErrorDetails(FurtherDetails):
    code: Annotated[int, Field(description="The HTTP status; in a stream, the status that the answer would have had.")]
    message: str
    type: LlamaErrorType
    param: Annotated[str | None, Field(description="Ours: the field at fault.")]
    reason: Annotated[str | None, Field(description="Ours: what is wrong, or why the request was cancelled.")]
    request_id: Annotated[str, Field(description="Ours.")]


class LlamaErrorAnswer(WithUsage):
    """llama-server's shape of an error; `usage` is there if the request had begun."""

    error: LlamaErrorDetails


def llama_error(facts: ErrorFacts, request_id: str) -> LlamaErrorAnswer:
    error: LlamaErrorDetails = {
        "code": facts.status,
        "message": facts.message,
        "type": LLAMA_TYPES.get(facts.status, "invalid_request_error" if facts.status < 500 else "server_error"),
        "param": facts.param,
        "reason": facts.code,
        "request_id": request_id,
        **further(facts),
    }
    if facts.sizes is not None:
        error["type"] = "exceed_context_size_error"
    return {"error": error, **with_usage(facts)}


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
ANTHROPIC_TYPES: dict[int, AnthropicErrorType] = {
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
    error: AnthropicErrorAnswer = {
        "type": "error",
        "error": {
            "type": ANTHROPIC_TYPES.get(facts.status, "invalid_request_error" if facts.status < 500 else "api_error"),
            "message": facts.message if facts.sizes is None else TOO_LONG.format(*facts.sizes),
            "param": facts.param,
            "code": facts.code,
        },
        "request_id": request_id,
    }
    if facts.detail is not None:
        error["error"]["detail"] = facts.detail
    if facts.usage is not None:
        error["usage"] = message_usage(facts.usage)
    return error


MESSAGES = "/v1/messages"
# The first parts of paths. Paths without a version that OpenAI also has, such as /chat/completions, have OpenAI's
# errors.
LLAMA_SERVERS = frozenset(
    (
        *("apply-template", "completion", "completions", "detokenize", "embedding", "embeddings", "infill"),
        *("lora-adapters", "props", "rerank", "reranking", "slots", "tokenize"),
    )
)


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The shape of an API's errors: the function that makes the body from the error and the request's id, and the
    body's type.

    `id_headers` are the names of the headers that carry the id.
    """

    word: Callable[[ErrorFacts, str], Mapping[str, Any]]
    answer: type
    id_headers: tuple[str, ...] = ("X-Request-Id",)


OPENAI = ErrorShape(openai_error, ErrorAnswer)
LLAMA = ErrorShape(llama_error, LlamaErrorAnswer)
ANTHROPIC = ErrorShape(anthropic_error, AnthropicErrorAnswer, ("X-Request-Id", "request-id"))


def shape_of_path(path: str) -> ErrorShape:
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        return ANTHROPIC
    return LLAMA if path.removeprefix("/").partition("/")[0] in LLAMA_SERVERS else OPENAI


def shape_of(scope: Scope) -> ErrorShape:
    """Return the shape for a path. Anthropic's clients send the version of its API, on paths that others have too."""
    return ANTHROPIC if "anthropic-version" in Headers(scope=scope) else shape_of_path(scope["path"])
