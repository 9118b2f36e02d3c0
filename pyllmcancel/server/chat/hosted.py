"""Calls of other servers' tools, and their results, as text that a model can read.

A conversation that began on another server has them as blocks (Anthropic's) or items (OpenAI's) of many kinds, all
built alike. They are read by the names of their fields, so new kinds are read as well. Encrypted parts, pictures and
files have no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict

from pyllmcancel.server.wire.fields import Sent

# The fields with the call's input; the first one that is there counts.
ASKED = ("input", "arguments", "action", "actions", "operation", "queries", "code")
# The fields with the result, and the readable fields inside it, in the order in which they are read.
RETURNED = ("content", "output", "outputs", "results", "result", "tool_references", "tabs", "error", "reason")
READABLE = (
    *("title", "filename", "name", "tool_name", "url", "text", "stdout", "stderr", "logs", "lines"),
    *("source", "data", "tool_references", "content", "error_code", "error_message", "code", "message"),
)
PICTURES = frozenset({"image", "base64", "computer_screenshot", "input_image"})
# The kind of call whose result is a picture, in a text.
DRAWN = "image_generation_call"
ENDINGS = ("_tool_use", "_tool_result", "_call_output", "_call", "_output")


class Foreign(Sent):
    """A block or an item that only other servers make: a call of their tools, its result, or another mark."""

    model_config = ConfigDict(extra="allow")

    type: str

    @property
    def fields(self) -> dict[str, Any]:
        """The other fields."""
        return self.model_extra or {}


def hosted_text(foreign: Foreign) -> str:
    """Return the text of a block or an item; empty if it has none."""
    sent = {"type": foreign.type, **foreign.fields}
    name = _name(sent)
    lines = []
    asked = next((sent[field] for field in ASKED if sent.get(field)), None)
    if asked is not None or "name" in sent:
        text = asked if isinstance(asked, str) else json.dumps(asked, ensure_ascii=False)
        lines.append(f"[{name} called]" if asked is None else f"[{name} called with {text}]")
    if sent.get("type") == DRAWN:
        returned = list(readable(sent.get("revised_prompt")))
    else:
        returned = [text for field in RETURNED for text in readable(sent.get(field))]
    if returned:
        lines += [f"[{name} returned]", *returned]
    return "\n".join(lines)


def readable(value: Any) -> Iterator[str]:
    """Iterate over the texts inside a tool's result."""
    match value:
        case str():
            if value:
                yield value
        case list():
            for one in value:
                yield from readable(one)
        case {"type": str(kind)} if kind in PICTURES:
            return
        case dict():
            for field in READABLE:
                yield from readable(value.get(field))


def _name(sent: Mapping[str, Any]) -> str:
    """Return the tool's name, with its server's name before it. For a block without a name, its kind stands in."""
    kind = str(sent.get("type", ""))
    ending = next((ending for ending in ENDINGS if kind.endswith(ending)), "")
    name = sent.get("name") or kind.removesuffix(ending)
    server = sent.get("server_name") or sent.get("server_label")
    return f"{server}.{name}" if server else str(name)
