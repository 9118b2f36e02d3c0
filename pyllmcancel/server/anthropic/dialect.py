"""The wording of answers of ``/v1/messages``: whole, and in events that are named by their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyllmcancel.events import FinishReason, Limit, Usage
from pyllmcancel.server.answer_events import frame
from pyllmcancel.server.anthropic.answer import (
    BlockEvent,
    MessageAnswer,
    MessageDeltaEvent,
    MessageEnd,
    MessageEnvelope,
    MessageStopEvent,
    StopReason,
    message_usage,
)
from pyllmcancel.server.anthropic.message_blocks import MessageBlocks
from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.errors.shapes import AnthropicErrorAnswer, anthropic_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyllmcancel.events import Delta
    from pyllmcancel.server.anthropic.body import MessagesBody
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.chat.turn import ChatTurn
    from pyllmcancel.server.errors.shapes import ErrorFacts

PING = {"type": "ping"}


class MessagesDialect(Dialect):
    """One message. Any end but by one of the client's `stop_sequences` is reported as the end of the turn, unless the
    answer fills the context.
    """

    names_events = True
    ping = frame(PING, named=True)

    def __init__(self, incoming: Incoming[MessagesBody], turn: ChatTurn) -> None:
        body, state = incoming.body, incoming.state
        self._envelope: MessageEnvelope = {
            "id": f"msg_{incoming.exchange.request_id}",
            "type": "message",
            "role": "assistant",
            "model": state.model_name,
        }
        self._parser = turn.new_parser()
        self._n_prompt = len(turn.prompts[0])
        self._stop_sequences = body.stop_sequences or ()
        self._n_ctx = state.n_ctx
        self._blocks = MessageBlocks([tool.name for _, tool in body.offered if tool.eager_input_streaming])
        self._last: Delta | None = None

    def opening(self) -> Iterable[Mapping[str, Any]]:
        usage = message_usage(Usage(prompt_tokens=self._n_prompt))
        message: MessageAnswer = {
            **self._envelope,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield {"type": "message_start", "message": message}
        yield PING

    def chunks(self, delta: Delta) -> Iterator[BlockEvent]:
        self._last = delta
        yield from self._blocks.feed(self._parser.feed(delta))
        if delta.finish_reason is not None:
            yield from self._blocks.close()

    def closing(self, usage: Usage) -> Iterator[MessageDeltaEvent | MessageStopEvent]:
        yield {"type": "message_delta", "delta": self._end(usage), "usage": message_usage(usage)}
        yield {"type": "message_stop"}

    def failure(self, error: ErrorFacts, request_id: str) -> Iterable[AnthropicErrorAnswer]:
        yield anthropic_error(error, request_id)

    def whole(self, deltas: list[Delta], usage: Usage) -> MessageAnswer:
        self._blocks = MessageBlocks()  # no input is sent before it is whole
        for delta in deltas:
            list(self.chunks(delta))
        return {**self._envelope, "content": self._blocks.whole(), **self._end(usage), "usage": message_usage(usage)}

    def _end(self, usage: Usage) -> MessageEnd:
        assert self._last is not None
        stop_text = self._last.stop_text if self._last.stop_text in self._stop_sequences else None
        reason: StopReason = "tool_use" if self._parser.n_calls else "end_turn"
        if stop_text is not None:
            reason = "stop_sequence"
        elif self._last.finish_reason is FinishReason.LENGTH:
            full = self._n_prompt + usage.completion_tokens >= self._n_ctx
            reason = "model_context_window_exceeded" if full else "max_tokens"
        end: MessageEnd = {"stop_reason": reason, "stop_sequence": stop_text}
        if self._last.limit is Limit.REPETITION:
            end["stop_details"] = {"type": "repetition"}
        return end
