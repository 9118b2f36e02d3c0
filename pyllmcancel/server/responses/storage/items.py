"""The items of an input as they are stored and listed: whole, each with an id that names its response."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pyllmcancel.server.chat.messages import ContentPart, TextPart
from pyllmcancel.server.media.parts import AudioPart, ImagePart
from pyllmcancel.server.responses import input_items as sent
from pyllmcancel.server.responses.answer import RESPONSE_PREFIX

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


def kept(items: Sequence[sent.AnyItem], request_id: str) -> list[dict[str, Any]]:
    return [_kept(item, f"{request_id}_i{number}") for number, item in enumerate(items)]


def _kept(item: sent.AnyItem, name: str) -> dict[str, Any]:
    item_id = item.id or f"{PREFIXES.get(item.type, 'item')}_{name}"
    head = {"type": item.type, "id": item_id, "status": getattr(item, "status", None) or "completed"}
    match item:
        case sent.MessageItem(role=role):
            kind = "output_text" if role == "assistant" else "input_text"
            return head | {"role": role, "content": _parts(item.content, kind)}
        case sent.CallItem() | sent.CustomCallItem():
            said = {"call_id", "name", "arguments", "input", "namespace"}
            return head | item.model_dump(include=said, exclude_none=True)
        case sent.CallOutputItem(output=output):
            returned = output if isinstance(output, str) else _parts(output, "input_text")
            return head | {"call_id": item.call_id, "output": returned}
        case sent.ReasoningItem():
            return head | item.model_dump(include={"summary", "content", "encrypted_content"}, exclude_none=True)
        case sent.LoadedTools():
            return head | item.model_dump(exclude_unset=True, exclude={"type", "id", "status"})
        case sent.ForeignItem():
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
