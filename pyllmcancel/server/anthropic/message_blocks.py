"""The content blocks of an answer: events made of its parts as they come, and whole blocks made of the events."""

from __future__ import annotations

import json
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
from pyllmcancel.server.chat.answer_parser import Arguments, CallBegins, Content, Part, Reasoning

if TYPE_CHECKING:
    from collections.abc import Container


# The member in which Anthropic's clients have to send such an input back.
INVALID = "INVALID_JSON"


class CallInput:
    """The input of one call. It takes fragments and returns whole members of the object, so that no member is ever cut
    off.

    Text that is not JSON is not returned; instead the whole text, as it was written, becomes the member `INVALID_JSON`.

    An `eager` one returns each fragment unchanged, as the client asked for.
    """

    def __init__(self, *, eager: bool = False) -> None:
        self._eager = eager
        self._written: list[str] = []
        self._member: list[str] = []  # characters of the member that has begun
        self._handed_out = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._ended = False  # True after the object's last brace
        self._spoiled = False

    def feed(self, text: str) -> str:
        """Return the text that can be sent after this fragment."""
        self._written.append(text)
        if self._eager:
            return text
        return "" if self._spoiled else "".join(map(self._handed, self._members(text)))

    def finish(self) -> str:
        """Return the text that completes the object. All its members are whole, even if the answer broke off."""
        if self._eager:
            return ""
        found = ""
        if self._spoiled:
            found = self._handed(f'"{INVALID}": {json.dumps("".join(self._written))}')
        return f"{found}}}" if self._handed_out else "{}"

    def _handed(self, member: str) -> str:
        before = "," if self._handed_out else "{"
        self._handed_out = True
        return before + member

    def _members(self, text: str) -> list[str]:
        """Return members of the object that end in this fragment; sets `_spoiled` if the text cannot be an object."""
        found: list[str] = []
        for character in text:
            if self._depth == 0:
                if not character.isspace():
                    self._spoiled = self._ended or character != "{"
                    self._depth = 1
            elif not self._ends_member(character):
                self._member.append(character)
            else:
                self._take_member(found)
                if self._depth == 0:
                    self._ended = True
                    self._spoiled = self._spoiled or character != "}"
            if self._spoiled:
                break
        return found

    def _ends_member(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._in_string = character != '"'
            self._escaped = character == "\\"
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        else:
            return character == "," and self._depth == 1
        return False

    def _take_member(self, found: list[str]) -> None:
        member, self._member = "".join(self._member), []
        if self._depth == 0 and not member.strip() and not found and not self._handed_out:
            return  # an object without members
        try:
            from_json(f"{{{member}}}" if member.strip() else "")
            found.append(member)
        except ValueError:
            self._spoiled = True


# Clients expect a signature, and send it back. Nothing is signed here, and any signature will do.
SIGNATURE = "unsigned"


class MessageBlocks:
    """Makes events of blocks, one after the other: each block ends before the next begins. The input of `eager_tools`
    is sent while the model writes it.
    """

    def __init__(self, eager_tools: Container[str] = ()) -> None:
        self._eager_tools = eager_tools
        self._open: ContentBlock | None = None
        self._blocks: list[ContentBlock] = []  # as they begin
        self._texts: list[list[str]] = []  # what each of them has
        self._input = CallInput()

    def feed(self, parts: Iterable[Part]) -> Iterator[BlockEvent]:
        for part in parts:
            match part:
                case Reasoning(text=text):
                    yield from self._in_block(ThinkingAnswer(type="thinking", thinking="", signature=""))
                    yield self._delta({"type": "thinking_delta", "thinking": text}, text)
                case Content(text=text):
                    yield from self._in_block(TextAnswer(type="text", text="", citations=None))
                    yield self._delta({"type": "text_delta", "text": text}, text)
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

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def whole(self) -> list[ContentBlock]:
        """Return the blocks that a client would make of these events; all of them have ended."""
        return [filled(block, "".join(texts)) for block, texts in zip(self._blocks, self._texts, strict=True)]

    def _in_block(self, wanted: ContentBlock) -> Iterator[BlockEvent]:
        if self._open is None or self._open["type"] != wanted["type"]:
            yield from self.close()
            yield self._begin(wanted)

    def _begin(self, block: ContentBlock) -> BlockStartEvent:
        self._open = block
        self._blocks.append(block)
        self._texts.append([])
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: BlockDelta, text: str = "") -> BlockDeltaEvent:
        self._texts[-1].append(text)
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _input_delta(self, text: str) -> Iterator[BlockDeltaEvent]:
        if text:
            yield self._delta({"type": "input_json_delta", "partial_json": text}, text)


def filled(block: ContentBlock, text: str) -> ContentBlock:
    match block["type"]:
        case "text":
            return {**block, "text": text}
        case "thinking":
            return {**block, "thinking": text, "signature": SIGNATURE}
        case "tool_use":
            return {**block, "input": from_json(text)}
