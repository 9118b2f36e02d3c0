"""Answers of ``/v1/responses``: a response, its items, and the events of its stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field

from pyllmcancel.events import Usage
from pyllmcancel.server.wire.fields import ABSENT, Answer, StopDetails, absent

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
RESPONSE_PREFIX = "resp_"


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class OutputTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(Answer):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[OutputTokenLogprob]


class AnyOutput(Answer):
    id: str
    status: ItemStatus


class OutputMessage(AnyOutput):
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(Answer):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(AnyOutput):
    type: Literal["reasoning"]
    summary: Annotated[list[Any], Field(description="Empty: models here show the reasoning itself, no summary of it.")]
    content: list[ReasoningText]
    encrypted_content: NotRequired[Annotated[str | None, absent("If `include` asks for it; for later requests.")]]


class OutputToolCall(AnyOutput):
    call_id: str
    name: str
    namespace: NotRequired[Annotated[str | None, ABSENT]]


class OutputFunctionCall(OutputToolCall):
    type: Literal["function_call"]
    arguments: Annotated[str, Field(description="JSON, as the model wrote it.")]


class OutputCustomCall(OutputToolCall):
    type: Literal["custom_tool_call"]
    input: str


class OutputSearchCall(AnyOutput):
    """A call of the client's search for tools."""

    type: Literal["tool_search_call"]
    call_id: str
    execution: Literal["client"]
    arguments: Annotated[dict[str, Any], Field(description="Empty until the call is complete.")]


OutputItem = OutputMessage | OutputReasoning | OutputFunctionCall | OutputCustomCall | OutputSearchCall


class InputTokensDetails(Answer):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    """Tokens of a response; after a cancel, those that had been processed by then."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Answer):
    code: str
    message: str


class IncompleteDetails(StopDetails):
    reason: Literal["max_output_tokens"]


class ResponseHead(Answer):
    """The fields of a response that do not change while it is generated."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class ResponseAnswer(ResponseHead):
    """A response; `status` says whether it is complete."""

    status: Status
    completed_at: int | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None


class ResponseEvent(Answer):
    """An event of a stream. Its type decides which fields it has."""

    type: str
    sequence_number: int
    response: NotRequired[Annotated[ResponseAnswer | None, ABSENT]]
    item: NotRequired[Annotated[OutputItem | None, ABSENT]]
    part: NotRequired[Annotated[OutputText | ReasoningText | None, ABSENT]]
    item_id: NotRequired[Annotated[str | None, ABSENT]]
    output_index: NotRequired[Annotated[int | None, ABSENT]]
    content_index: NotRequired[Annotated[int | None, ABSENT]]
    delta: NotRequired[Annotated[str | None, ABSENT]]
    text: NotRequired[Annotated[str | None, ABSENT]]
    logprobs: NotRequired[Annotated[list[OutputTokenLogprob] | None, ABSENT]]
    arguments: NotRequired[Annotated[str | None, ABSENT]]
    input: NotRequired[Annotated[str | None, ABSENT]]
    name: NotRequired[Annotated[str | None, ABSENT]]
    code: NotRequired[Annotated[str | None, ABSENT]]
    message: NotRequired[Annotated[str | None, ABSENT]]
    param: NotRequired[Annotated[str | None, ABSENT]]


class InputItemList(Answer):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: Annotated[str, Field(description="Empty for an empty page.")]
    last_id: str
    has_more: bool


class DeletedResponse(Answer):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Answer):
    object: Literal["response.input_tokens"]
    input_tokens: int


def response_usage(usage: Usage, n_reasoning: int) -> ResponseUsage:
    """Return the usage; `n_reasoning` of the generated tokens were reasoning."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": min(n_reasoning, usage.completion_tokens)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
