"""The items of a request's `input`: what was said, called and returned before."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag

TEXT_PARTS = ("input_text", "output_text", "text")


class Part(BaseModel):
    """A piece of text. Clients send back what they got: other fields are passed over."""

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""

    @property
    def said(self) -> str:
        return self.refusal if self.type == "refusal" else self.text


def _only_text(content: Any) -> Any:
    """In words: pydantic's would list every type that a part is not."""
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in (*TEXT_PARTS, "refusal"):
            raise ValueError(f"a part of type {kind!r} is not supported here, only text is")
    return content


Content = Annotated[str | list[Part], BeforeValidator(_only_text)]


def text_of(content: str | list[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.said for part in content)


class MessageItem(BaseModel):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class CallItem(BaseModel):
    type: Literal["function_call"]
    id: str | None = None
    call_id: str
    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: str = Field(description="JSON.")
    status: str | None = None


class CustomCallItem(BaseModel):
    type: Literal["custom_tool_call"]
    id: str | None = None
    call_id: str
    name: str = Field(min_length=1)
    namespace: str | None = None
    input: str
    status: str | None = None


class CallOutputItem(BaseModel):
    """What a called tool has returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    id: str | None = None
    call_id: str
    output: Content


class SummaryPart(BaseModel):
    type: Literal["summary_text"] = "summary_text"
    text: str = ""


class ReasoningPart(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class ReasoningItem(BaseModel):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[SummaryPart] = []
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """What was thought; of another server's encrypted content, nothing can be known but its summary."""
        if self.content:
            return "".join(part.text for part in self.content)
        if self.encrypted_content:
            return unsealed(self.encrypted_content) or ""
        return "\n\n".join(part.text for part in self.summary)


class ReferenceItem(BaseModel):
    """Stands for an item of a response that is stored."""

    type: Literal["item_reference"] = "item_reference"
    id: str


AnyItem = MessageItem | CallItem | CustomCallItem | CallOutputItem | ReasoningItem | ReferenceItem
KINDS = {
    "message": "message",
    "function_call": "call",
    "custom_tool_call": "custom_call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "reasoning": "reasoning",
    "item_reference": "reference",
}


def _kind_of(item: Any) -> str | None:
    """Items that leave their type out are messages, or references."""
    if not isinstance(item, dict):
        return KINDS.get(getattr(item, "type", ""))
    implied = "message" if "role" in item else "item_reference"
    return KINDS.get(item.get("type") or implied)


def _only_known(items: Any) -> Any:
    for item in items if isinstance(items, list) else []:
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind not in KINDS:
            raise ValueError(f"an item of type {kind!r} is not supported here")
    return items


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("call")]
    | Annotated[CustomCallItem, Tag("custom_call")]
    | Annotated[CallOutputItem, Tag("output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("reference")],
    Discriminator(_kind_of),
]
OnlyKnown = BeforeValidator(_only_known)


# What marks our own encrypted content, in which nothing is secret: its client has seen all of it.
SEAL = b"pyllmcancel:"


def sealed(reasoning: str) -> str:
    """Reasoning as a client is to keep it: opaque, and whole."""
    return base64.b64encode(SEAL + reasoning.encode("utf-8", "surrogatepass")).decode()


def unsealed(content: str) -> str | None:
    """What was `sealed`; None of what another server has encrypted."""
    try:
        found = base64.b64decode(content, validate=True)
        return found.removeprefix(SEAL).decode() if found.startswith(SEAL) else None
    except (binascii.Error, ValueError):
        return None
