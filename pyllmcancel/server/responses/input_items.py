"""The items of a request's `input`: earlier messages, calls and results. They are stored and listed whole, each with an
id that names its response.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from pyllmcancel.server.chat.hosted import Foreign, hosted_text
from pyllmcancel.server.chat.messages import TEXT_PARTS, ContentPart, TextPart
from pyllmcancel.server.limits import MAX_TOOLS
from pyllmcancel.server.media.parts import AudioPart, ImagePart
from pyllmcancel.server.responses.answer import RESPONSE_PREFIX
from pyllmcancel.server.responses.tools import Tool, names_of
from pyllmcancel.server.wire.fields import Sent, kind_of, of_known_types


def _as_chats(content: Any) -> Any:
    """Convert the parts of a content to a chat's; other fields, as of parts that clients send back, are ignored."""
    return [_as_chats_part(part) for part in content] if isinstance(content, list) else content


def _as_chats_part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind == "input_audio":
        return part
    if kind in TEXT_PARTS:
        return {"type": "text", "text": part.get(TEXT_PARTS[kind]) or ""}
    if kind != "input_image":
        raise ValueError(f"a part of type {kind!r} is not supported; texts, input_image and input_audio are")
    if part.get("image_url") is None:
        raise ValueError("an input_image needs an image_url: this server has no files, so no file_id either")
    return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part.get("detail")}}


Content = Annotated[str | list[ContentPart], BeforeValidator(_as_chats)]


class SentItem(Sent):
    id: str | None = None


class MessageItem(SentItem):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class ToolCallItem(SentItem):
    call_id: str
    name: str = Field(min_length=1)
    namespace: str | None = None
    status: str | None = None


class CallItem(ToolCallItem):
    type: Literal["function_call"]
    arguments: str = Field(description="JSON.")


class CustomCallItem(ToolCallItem):
    type: Literal["custom_tool_call"]
    input: str


class CallOutputItem(SentItem):
    """The output of a called tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str = ""
    output: Content


class SummaryPart(Sent):
    type: Literal["summary_text"] = "summary_text"
    text: str = ""


class ReasoningPart(Sent):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class ReasoningItem(SentItem):
    type: Literal["reasoning"]
    summary: list[SummaryPart] = Field(default=[])
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """The text of the reasoning. If another server has encrypted it, only its summary can be read."""
        if self.content:
            return "".join(part.text for part in self.content)
        own = unsealed(self.encrypted_content) if self.encrypted_content else None
        return "\n\n".join(part.text for part in self.summary) if own is None else own


class ReferenceItem(Sent):
    """Stands for an item of a stored response."""

    type: Literal["item_reference"] = "item_reference"
    id: str


class LoadedTools(SentItem):
    """Tools that a search has found, or that were added in the course of the conversation."""

    type: Literal["tool_search_output", "additional_tools"]
    call_id: str | None = None
    execution: str | None = None
    role: str | None = None
    status: str | None = None
    tools: list[Tool] = Field(default=[], max_length=MAX_TOOLS)

    @property
    def text(self) -> str:
        """The text of a search's result, which names the tools; empty for tools that were added."""
        return "\n".join(["[tool_search returned]", *names_of(self.tools)]) if self.type == "tool_search_output" else ""

    @property
    def is_users(self) -> bool:
        """True if the client has made the item, in answer to a call."""
        return self.execution == "client"


class ForeignItem(Foreign):
    """An item that only OpenAI's servers make."""

    id: str | None = None
    status: str | None = None

    @property
    def text(self) -> str:
        """The text of the item that a model can read; empty if it has none."""
        return "" if self.type in MARKS else hosted_text(self)

    @property
    def is_users(self) -> bool:
        """True if the client has made the item, in answer to a call."""
        return self.type.endswith(("_call_output", "_response"))


OwnItem = MessageItem | CallItem | CustomCallItem | CallOutputItem | ReasoningItem | ReferenceItem | LoadedTools
AnyItem = OwnItem | ForeignItem
# Kinds without content for a model: lists of tools, records of how the conversation was shortened, and similar.
MARKS = frozenset(
    {"compaction", "compaction_summary", "compaction_trigger", "configuration_update"}
    | {"ghost_snapshot", "mcp_list_tools"}
)
FOREIGN = re.compile(r"\w+_call(_output)?|mcp_approval_re(quest|sponse)|program(_output)?|" + "|".join(sorted(MARKS)))
KINDS = frozenset(
    {"message", "reasoning", "item_reference", "function_call", "function_call_output"}
    | {"custom_tool_call", "custom_tool_call_output", "tool_search_output", "additional_tools"}
)


def _with_type(item: Any) -> Any:
    """Convert items without a type to messages, or references."""
    if not isinstance(item, dict) or item.get("type"):
        return item
    return item | {"type": "message" if "role" in item else "item_reference"}


Item = Annotated[
    Annotated[OwnItem, Field(discriminator="type"), Tag("<own>")] | Annotated[ForeignItem, Tag("<foreign>")],
    Discriminator(lambda item: "<own>" if kind_of(item) in (*KINDS, None) else "<foreign>"),
    BeforeValidator(_with_type),
]
OnlyKnown = of_known_types("an item", lambda kind: kind in KINDS or FOREIGN.fullmatch(kind))


# The mark of our own encrypted content. Nothing in it is secret: its client has seen all of it.
SEAL = b"pyllmcancel:"


def sealed(reasoning: str) -> str:
    """Return reasoning in the form that a client keeps: opaque, and whole."""
    return base64.b64encode(SEAL + reasoning.encode("utf-8", "surrogatepass")).decode()


def unsealed(content: str) -> str | None:
    """Return the text that was `sealed`; None if another server has encrypted it."""
    try:
        found = base64.b64decode(content, validate=True)
        return found.removeprefix(SEAL).decode() if found.startswith(SEAL) else None
    except (binascii.Error, ValueError):
        return None


# -- as they are stored ------------------------------------------------------------------------------------------------

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "function_call_output": "fco",
    "custom_tool_call_output": "cto",
    "reasoning": "rs",
}
# Our ids: of an output item, or of an input item that had no id.
ITEM_ID = re.compile(r"[a-z]+_(.+)_i?[0-9]+")


def response_of(item_id: str) -> str | None:
    """Return the id of the response that has an item; None if the item's id is not ours."""
    found = ITEM_ID.fullmatch(item_id)
    return None if found is None else f"{RESPONSE_PREFIX}{found[1]}"


def kept(items: Sequence[AnyItem], request_id: str) -> list[dict[str, Any]]:
    return [_kept(item, f"{request_id}_i{number}") for number, item in enumerate(items)]


def _kept(item: AnyItem, name: str) -> dict[str, Any]:
    item_id = item.id or f"{PREFIXES.get(item.type, 'item')}_{name}"
    head = {"type": item.type, "id": item_id, "status": getattr(item, "status", None) or "completed"}
    match item:
        case MessageItem(role=role):
            kind = "output_text" if role == "assistant" else "input_text"
            return head | {"role": role, "content": _parts(item.content, kind)}
        case CallItem() | CustomCallItem():
            said = {"call_id", "name", "arguments", "input", "namespace"}
            return head | item.model_dump(include=said, exclude_none=True)
        case CallOutputItem(output=output):
            returned = output if isinstance(output, str) else _parts(output, "input_text")
            return head | {"call_id": item.call_id, "output": returned}
        case ReasoningItem():
            return head | item.model_dump(include={"summary", "content", "encrypted_content"}, exclude_none=True)
        case LoadedTools():
            return head | item.model_dump(exclude_unset=True, exclude={"type", "id", "status"})
        case ForeignItem():
            return head | item.fields
    raise AssertionError(f"an item of type {item.type} must be resolved before it is stored")


def _parts(content: str | list[ContentPart], kind: str) -> list[dict[str, Any]]:
    parts: list[ContentPart] = [TextPart(text=content)] if isinstance(content, str) else content
    return [_part(part, kind) for part in parts]


def _part(part: ContentPart, kind: str) -> dict[str, Any]:
    match part:
        case TextPart(text=text):
            return {"type": kind, "text": text} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})
        case ImagePart(image_url=one):
            return {"type": "input_image", "image_url": one.url} | one.model_dump(include={"detail"}, exclude_none=True)
        case AudioPart(input_audio=sound):
            return {"type": "input_audio", "input_audio": sound.model_dump(exclude_none=True)}
