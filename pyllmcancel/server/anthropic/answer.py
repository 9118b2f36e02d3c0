"""A message as the answer of ``/v1/messages``, and the events of its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field

from pyllmcancel.server.wire.fields import ABSENT, Answer

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


class MessageUsage(Answer):
    """Anthropic's counts of a prompt's tokens: each token is counted in one of the first three."""

    input_tokens: Annotated[
        int, Field(ge=0, description="Tokens of the prompt, without those that came from the cache.")
    ]
    cache_creation_input_tokens: Annotated[
        int, Field(ge=0, description="Always 0: keeping a prefix costs nothing here.")
    ]
    cache_read_input_tokens: Annotated[int, Field(ge=0, description="Tokens that came from the cache.")]
    output_tokens: Annotated[int, Field(ge=0)]


def message_usage(usage: Usage) -> MessageUsage:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class StopDetails(Answer):
    type: Literal["repetition"]


class Stopped(Answer):
    """The reason of an end that the stop reason does not tell, in an object: Anthropic's refusals have one."""

    stop_details: NotRequired[Annotated[StopDetails | None, ABSENT]]


class TextAnswer(Answer):
    type: Literal["text"]
    text: str
    citations: None


class ThinkingAnswer(Answer):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseAnswer(Answer):
    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[
        dict[str, Any],
        Field(
            description=(
                "If the model did not write a JSON object, the member `INVALID_JSON` has the text that it wrote."
            )
        ),
    ]


ContentBlock = TextAnswer | ThinkingAnswer | ToolUseAnswer


class MessageEnvelope(Stopped):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str


class MessageAnswer(MessageEnvelope):
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: Annotated[str | None, Field(description="The stop sequence that ended the answer, if one did.")]
    usage: MessageUsage


class MessageStartEvent(Answer):
    """The message before its content, with the usage that is known so far."""

    type: Literal["message_start"]
    message: MessageAnswer


class PingEvent(Answer):
    type: Literal["ping"]


class BlockStartEvent(Answer):
    type: Literal["content_block_start"]
    index: int
    content_block: ContentBlock


class TextDelta(Answer):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Answer):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Answer):
    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(Answer):
    type: Literal["input_json_delta"]
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockDeltaEvent(Answer):
    type: Literal["content_block_delta"]
    index: int
    delta: BlockDelta


class BlockStopEvent(Answer):
    type: Literal["content_block_stop"]
    index: int


BlockEvent = BlockStartEvent | BlockDeltaEvent | BlockStopEvent


class MessageEnd(Stopped):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDeltaEvent(Answer):
    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage


class MessageStopEvent(Answer):
    """The end of a complete answer."""

    type: Literal["message_stop"]


class TokenCount(Answer):
    input_tokens: int


STREAM_EVENTS = (
    MessageStartEvent,
    PingEvent,
    BlockStartEvent,
    BlockDeltaEvent,
    BlockStopEvent,
    MessageDeltaEvent,
    MessageStopEvent,
)
