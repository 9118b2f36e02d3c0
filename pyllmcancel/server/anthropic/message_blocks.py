"""The content blocks of an answer: events made of its parts as they come, and whole blocks made of the events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, assert_never

from pydantic_core import from_json

from pyllmcancel.server.anthropic.answer import (
    BlockDelta,
    BlockDeltaEvent,
    BlockEvent,
    BlockStartEvent,
    ContentBlock,
    TextAnswer,
    ThinkingAnswer,
    ToolUseAnswer,
)
from pyllmcancel.server.anthropic.call_input import CallInput
from pyllmcancel.server.chat.parts import Arguments, CallBegins, Content, Part, Reasoning

if TYPE_CHECKING:
    from collections.abc import Container

# Clients expect a signature, and send it back. Nothing is signed here, and any signature is accepted.
SIGNATURE = "unsigned"


class MessageBlocks:
    """Makes events of blocks, one after the other: each block ends before the next begins.

    Parameters
    ----------
    eager_tools
        Names of tools whose input is sent while the model writes it.
    """

    def __init__(self, eager_tools: Container[str] = ()) -> None:
        self._eager_tools = eager_tools
        self._open: ContentBlock | None = None
        self._index = -1
        self._input = CallInput()

    def feed(self, parts: Iterable[Part]) -> Iterator[BlockEvent]:
        for part in parts:
            match part:
                case Reasoning(text=text):
                    yield from self._in_block(ThinkingAnswer(type="thinking", thinking="", signature=""))
                    yield self._delta({"type": "thinking_delta", "thinking": text})
                case Content(text=text):
                    yield from self._in_block(TextAnswer(type="text", text="", citations=None))
                    yield self._delta({"type": "text_delta", "text": text})
                case CallBegins(name=name, id=call_id):
                    yield from self.close()
                    self._input = CallInput(eager=name in self._eager_tools)
                    yield self._begin(ToolUseAnswer(type="tool_use", id=call_id, name=name, input={}))
                case Arguments(text=text):
                    yield from self._input_delta(self._input.feed(text))
                case _:
                    assert_never(part)

    def close(self) -> Iterator[BlockEvent]:
        """End the block that is open."""
        if self._open is None:
            return
        if self._open["type"] == "thinking":
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        elif self._open["type"] == "tool_use":
            yield from self._input_delta(self._input.finish())
        self._open = None
        yield {"type": "content_block_stop", "index": self._index}

    def _in_block(self, wanted: ContentBlock) -> Iterator[BlockEvent]:
        if self._open is None or self._open["type"] != wanted["type"]:
            yield from self.close()
            yield self._begin(wanted)

    def _begin(self, block: ContentBlock) -> BlockStartEvent:
        self._open = block
        self._index += 1
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: BlockDelta) -> BlockDeltaEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _input_delta(self, text: str) -> Iterator[BlockDeltaEvent]:
        if text:
            yield self._delta({"type": "input_json_delta", "partial_json": text})


def whole_blocks(events: Iterable[BlockEvent]) -> list[ContentBlock]:
    """Return the blocks that a client would make of these events."""
    blocks: list[ContentBlock] = []
    texts: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"].copy())
                texts = []
            case "content_block_delta":
                texts += _text_of(event["delta"])
            case "content_block_stop":
                _fill(blocks[-1], "".join(texts))
    return blocks


def _text_of(delta: BlockDelta) -> list[str]:
    match delta["type"]:
        case "text_delta":
            return [delta["text"]]
        case "thinking_delta":
            return [delta["thinking"]]
        case "input_json_delta":
            return [delta["partial_json"]]
        case "signature_delta":
            return []


def _fill(block: ContentBlock, text: str) -> None:
    match block["type"]:
        case "text":
            block["text"] = text
        case "thinking":
            block["thinking"], block["signature"] = text, SIGNATURE
        case "tool_use":
            block["input"] = from_json(text)
