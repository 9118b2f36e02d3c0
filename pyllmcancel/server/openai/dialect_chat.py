"""How ``/v1/chat/completions`` words an answer: messages, deltas of messages, and calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyllmcancel.request import FinishReason
from pyllmcancel.server.openai.dialect import OpenAIDialect, Sender
from pyllmcancel.server.openai.logprobs import Placed, chat_shape
from pyllmcancel.server.openai.tool_calls import Arguments, CallBegins, Content, Part, ToolCallParser

if TYPE_CHECKING:
    from pyllmcancel.constraints.tool_formats import ToolFormat
    from pyllmcancel.request import Delta
    from pyllmcancel.server.openai.wire import ChatBody

LETTERS = string.ascii_letters + string.digits
OPENAI_PREFIX = "call_"


class ChatDialect(OpenAIDialect):
    """One request's answer.

    Parameters
    ----------
    tool_format
        How this answer may call tools, if it may.
    visible
        Control tokens that are part of the text.
    """

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        sender: Sender,
        body: ChatBody,
        tool_format: ToolFormat | None = None,
        visible: frozenset[int] = frozenset(),
    ) -> None:
        n = body.n or 1
        piece = sender.model.piece
        super().__init__(
            sender, n, lambda token: piece(token, special=token in visible), include_usage=body.includes_usage
        )
        self._format = tool_format
        self._parsers = [ToolCallParser(tool_format) for _ in range(n)] if tool_format is not None else []
        if body.service_tier is not None:
            self._envelope["service_tier"] = "default"

    def opening(self) -> Iterable[dict[str, Any]]:
        for index in range(len(self._ledgers)):
            yield self._chunk(_choice(index, {"role": "assistant", "content": ""}))

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        changes = [self._change(part) for part in self._parts(delta)]
        logprobs = chat_shape(self._model, self._placed(delta))
        finish_reason = self._finish_reason(delta)
        if finish_reason is not None or logprobs is not None:
            # OpenAI: calls are complete before the chunk that says so.
            last = changes.pop() if changes and "content" in changes[-1] else {}
            for change in changes:
                yield self._chunk(_choice(delta.index, change))
            yield self._chunk(_choice(delta.index, last, logprobs, finish_reason))
        else:
            for change in changes:
                yield self._chunk(_choice(delta.index, change))

    def _whole_choices(self, by_choice: list[list[Delta]]) -> list[dict[str, Any]]:
        return [self._whole_choice(index, deltas) for index, deltas in enumerate(by_choice)]

    def _whole_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        parts = [part for delta in deltas for part in self._parts(delta)]
        placed = [entry for delta in deltas for entry in self._placed(delta)]
        return {
            "index": index,
            "message": self._message(parts),
            "logprobs": chat_shape(self._model, placed),
            "finish_reason": self._finish_reason(deltas[-1]),
        }

    def _message(self, parts: Sequence[Part]) -> dict[str, Any]:
        text = "".join(part.text for part in parts if isinstance(part, Content))
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        calls: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case CallBegins(name=name):
                    function = {"name": name, "arguments": ""}
                    calls.append({"id": self._call_id(), "type": "function", "function": function})
                case Arguments(text=fragment):
                    calls[-1]["function"]["arguments"] += fragment
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return message

    def _parts(self, delta: Delta) -> list[Part]:
        if not self._parsers:
            return [Content(delta.text)] if delta.text else []
        parser = self._parsers[delta.index]
        parts = list(parser.feed(delta.text))
        return parts if delta.finish_reason is None else [*parts, *parser.finish()]

    def _placed(self, delta: Delta) -> list[Placed]:
        final, stopped = delta.finish_reason is not None, delta.stop_text is not None
        return self._ledgers[delta.index].take(delta.text, delta.logprobs, final=final, stopped=stopped)

    def _finish_reason(self, delta: Delta) -> str | None:
        called = bool(self._parsers) and self._parsers[delta.index].n_calls > 0
        return "tool_calls" if called and delta.finish_reason is FinishReason.STOP else delta.finish_reason

    def _change(self, part: Part) -> dict[str, Any]:
        """A part as a change of the message."""
        match part:
            case Content(text=text):
                return {"content": text}
            case CallBegins(index=index, name=name):
                function = {"name": name, "arguments": ""}
                return {
                    "tool_calls": [{"index": index, "id": self._call_id(), "type": "function", "function": function}]
                }
            case Arguments(index=index, text=text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _call_id(self) -> str:
        assert self._format is not None
        n_letters = self._format.id_length
        letters = "".join(secrets.choice(LETTERS) for _ in range(n_letters))
        # The templates that count the letters want no others.
        return letters if n_letters < len(OPENAI_PREFIX) + 8 else f"{OPENAI_PREFIX}{letters}"


def _choice(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
