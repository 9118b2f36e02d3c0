"""The answer of ``/v1/chat/completions``: messages, deltas of messages, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field

from pyllmcancel.events import FinishReason
from pyllmcancel.server.chat.answer_parser import Arguments, CallBegins, Content, Part, Reasoning
from pyllmcancel.server.chat.logprobs import token_logprobs
from pyllmcancel.server.openai.answer import FINISH, ChunkUsage, Envelope, OpenAIDialect, ReturnedTokens
from pyllmcancel.server.openai.logprobs import ChatLogprobs
from pyllmcancel.server.wire.fields import ABSENT, Answer, StopDetails, stop_details
from pyllmcancel.server.wire.usage import UsageAnswer

if TYPE_CHECKING:
    from pyllmcancel.events import Delta
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.chat.logprobs import Placed
    from pyllmcancel.server.chat.turn import ChatTurn

ChatFinish = Literal["stop", "length", "tool_calls"]


class FunctionCall(Answer):
    name: str
    arguments: Annotated[str, Field(description="JSON, as the model wrote it.")]


class ToolCall(Answer):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[Annotated[str | None, ABSENT]]
    tool_calls: NotRequired[Annotated[list[ToolCall] | None, ABSENT]]


class ChatChoice(ReturnedTokens, StopDetails):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatEnvelope(Envelope):
    """The fields that answers and chunks begin with, and the tier if the request names one."""

    service_tier: NotRequired[Annotated[Literal["default"], Field(default="default")]]


class ChatCompletion(ChatEnvelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageAnswer


class CalledFunctionDelta(Answer):
    name: NotRequired[Annotated[str | None, ABSENT]]
    arguments: NotRequired[Annotated[str | None, ABSENT]]


class ToolCallDelta(Answer):
    index: int
    id: NotRequired[Annotated[str | None, ABSENT]]
    type: NotRequired[Annotated[Literal["function"] | None, ABSENT]]
    function: CalledFunctionDelta


class MessageDelta(Answer):
    role: NotRequired[Annotated[Literal["assistant"] | None, ABSENT]]
    content: NotRequired[Annotated[str | None, ABSENT]]
    reasoning_content: NotRequired[Annotated[str | None, ABSENT]]
    tool_calls: NotRequired[Annotated[list[ToolCallDelta] | None, ABSENT]]


class ChatChoiceChunk(ReturnedTokens, StopDetails):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatCompletionChunk(ChatEnvelope, ChunkUsage):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChoiceChunk]


class ChatDialect(OpenAIDialect):
    """One request's answer."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, incoming: Incoming[ChatBody], turn: ChatTurn) -> None:
        n, shows, piece = turn.params.n, turn.params.shows, incoming.state.engine.model.piece
        super().__init__(incoming, n, lambda token: piece(token, special=shows(token)))
        if incoming.body.service_tier is not None:
            self._envelope = {**self._envelope, "service_tier": "default"}
        self._parsers = [turn.new_parser() for _ in range(n)]

    def opening(self) -> Iterable[Mapping[str, Any]]:
        for index in range(len(self._parsers)):
            # An answer may have no token. As with OpenAI, the first chunk then shows that logprobs were asked for.
            yield self._chunk([choice_chunk(index, {"role": "assistant", "content": ""}, self._logprobs([]))])

    def _changes(self, delta: Delta) -> Iterable[ChatChoiceChunk]:
        changes: list[MessageDelta] = []
        for part in self._parsers[delta.index].feed(delta):
            match part:
                case Reasoning(text=text):
                    changes.append({"reasoning_content": text})
                case Content(text=text):
                    changes.append({"content": text})
                case CallBegins(index=index, name=name, id=call_id):
                    function: CalledFunctionDelta = {"name": name, "arguments": ""}
                    call: ToolCallDelta = {"index": index, "id": call_id, "type": "function", "function": function}
                    changes.append({"tool_calls": [call]})
                case Arguments(index=index, text=text):
                    changes.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        placed = self._ledgers[delta.index].take(delta)
        logprobs = self._logprobs(placed) if placed else None
        finish_reason = self._finish_reason(delta)
        returned = self._returned([delta])
        last: MessageDelta | None = None  # the change whose chunk has the tokens' data
        if logprobs is not None or returned.get("tokens"):
            last = changes.pop() if changes and "content" in changes[-1] else {}
        for changed in changes:
            yield choice_chunk(delta.index, changed)
        if last is not None:
            yield {**choice_chunk(delta.index, last, logprobs), **returned}
        if finish_reason is not None:
            # As with OpenAI, this chunk has no text, and calls are complete before it.
            yield {**choice_chunk(delta.index, {}, None, finish_reason), **stop_details(delta)}

    def _silent(self, index: int) -> ChatChoiceChunk:
        return choice_chunk(index, {"role": "assistant", "content": None})

    def _whole_choices(self, deltas: Sequence[list[Delta]]) -> list[ChatChoice]:
        choices: list[ChatChoice] = []
        for index, own in enumerate(deltas):
            parts = [part for delta in own for part in self._parsers[index].feed(delta)]
            placed = [entry for delta in own for entry in self._ledgers[index].take(delta)]
            finish_reason = self._finish_reason(own[-1])
            assert finish_reason is not None
            choice: ChatChoice = {
                "index": index,
                "message": self._message(parts),
                "logprobs": self._logprobs(placed),
                "finish_reason": finish_reason,
                **stop_details(own[-1]),
                **self._returned(own),
            }
            choices.append(choice)
        return choices

    def _logprobs(self, placed: Iterable[Placed]) -> ChatLogprobs | None:
        """Return the logprobs, which are null only if they were not asked for."""
        if not self._wants_logprobs:
            return None
        return {"content": [token_logprobs(self._model, entry) for _, entry in placed], "refusal": None}

    def _message(self, parts: Sequence[Part]) -> AssistantMessage:
        text = "".join(part.text for part in parts if isinstance(part, Content))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        calls: list[ToolCall] = []
        for part in parts:
            match part:
                case CallBegins(name=name, id=call_id):
                    calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}})
                case Arguments(index=index, text=fragment):
                    calls[index]["function"]["arguments"] += fragment
        message: AssistantMessage = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["content"], message["tool_calls"] = text or None, calls
        return message

    def _finish_reason(self, delta: Delta) -> ChatFinish | None:
        called = self._parsers[delta.index].n_calls > 0
        return "tool_calls" if called and delta.finish_reason is FinishReason.STOP else FINISH.get(delta.finish_reason)


def choice_chunk(
    index: int, delta: MessageDelta, logprobs: ChatLogprobs | None = None, finish_reason: ChatFinish | None = None
) -> ChatChoiceChunk:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
