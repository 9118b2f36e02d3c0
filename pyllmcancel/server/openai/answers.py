"""OpenAI's answers, as pydantic models: for the OpenAPI page. The dialect writes plain dicts; tests compare."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pyllmcancel.server.answers import Answer, UsageAnswer

CompletionFinish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="null for a prompt's first token, which nothing predicts.")
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: CompletionFinish


class CompletionChoiceChunk(CompletionChoice):
    finish_reason: CompletionFinish | None  # type: ignore[assignment]


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class CompletionChunk(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoiceChunk]
    usage: UsageAnswer | None = None


class TokenLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Answer):
    content: list[ChatTokenLogprob] | None
    refusal: None


class CalledFunction(Answer):
    name: str
    arguments: str = Field(description="JSON, as the model wrote it.")


class ToolCall(Answer):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Answer):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    choices: list[ChatChoice]
    usage: UsageAnswer


class CalledFunctionDelta(Answer):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Answer):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class MessageDelta(Answer):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoiceChunk(Answer):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatCompletionChunk(Answer):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    choices: list[ChatChoiceChunk]
    usage: UsageAnswer | None = None
