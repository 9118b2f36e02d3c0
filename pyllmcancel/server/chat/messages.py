"""The messages of a chat's body, in the forms in which clients send them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from pyllmcancel.server.wire.fields import CacheHint, RequestBody, Sent

# The field in which a part has its text, by the part's type in clients' words.
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
THOUGHTS = {"thinking": "thinking", "reasoning": "text", "reasoning_content": "text"}


class TextPart(RequestBody):
    type: Literal["text"] = "text"
    text: str
    cache_control: CacheHint = None
    prompt_cache_breakpoint: CacheHint = None


def _as_text(content: Any) -> Any:
    """Convert each part to a text part. Errors name the part's type: pydantic's own would list every type that a
    part is not.
    """
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return content
    return [_as_text_part(part) for part in content if _kind(part) not in THOUGHTS]


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _as_text_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = _kind(part)
    if kind in ("", "text"):
        return part
    if kind not in TEXT_PARTS:
        raise ValueError(f"a part of type {kind!r} is not supported; only text is")
    rest = {name: value for name, value in part.items() if name != TEXT_PARTS[kind]}
    return rest | {"type": "text", "text": part.get(TEXT_PARTS[kind])}


def _as_json(arguments: Any) -> Any:
    """Convert arguments to JSON text; some clients send them as an object, or send none."""
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    return "" if arguments is None else arguments


class CalledFunction(Sent):
    name: str = Field(min_length=1)
    arguments: Annotated[str, BeforeValidator(_as_json)] = Field("", description="JSON.")


class CalledTool(Sent):
    """A past call. Clients send back calls that they got, with fields of their own, which are ignored."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, call: Any) -> Any:
        """Convert a custom tool's call to the call of a function of one text."""
        custom = call.get("custom") if isinstance(call, dict) and not call.get("function") else None
        if not isinstance(custom, dict):
            return call
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {"id": call.get("id"), "function": function}


class Message(Sent):
    # Unknown fields are kept, because templates may use them.
    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=64, description="A role that the model's chat template knows.")
    content: Annotated[str | list[TextPart] | None, BeforeValidator(_as_text)] = None
    reasoning_content: str | None = Field(default=None, description="The model's reasoning, for templates that use it.")
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_usual_words(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        found = dict(message)
        if not isinstance(found.get("reasoning_content"), str):
            found["reasoning_content"] = _thoughts(found)
        called = found.get("function_call")
        if isinstance(called, dict) and not found.get("tool_calls"):
            found["tool_calls"] = [{"function": called}]
            del found["function_call"]
        if found.get("role") == "function":
            found["role"] = "tool"
        return found

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        """Return the message as templates expect it, without its unset fields."""
        found = (self.model_extra or {}) | {"role": self.role, "content": self.text}
        if self.reasoning_content is not None:
            found["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            found["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found


def _thoughts(message: dict[str, Any]) -> str | None:
    """Return the model's reasoning in a message: from a field of another name, or from parts of its content."""
    if isinstance(message.get("reasoning"), str):
        return str(message["reasoning"])
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    said = [part.get(THOUGHTS[_kind(part)]) for part in parts if _kind(part) in THOUGHTS]
    return "".join(text for text in said if isinstance(text, str)) or None
