"""The messages of a chat's body, in the forms in which clients send them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from pyllmcancel.server.media.parts import AudioPart, ImagePart, MediaPart
from pyllmcancel.server.wire.fields import CacheHint, RequestBody, Sent, kind_of, optional, text_or

# The field in which a part has its text, by the part's type in clients' words.
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
MEDIA_PARTS = ("image_url", "input_audio")
THOUGHTS = {"thinking": "thinking", "reasoning": "text", "reasoning_content": "text"}


class TextPart(RequestBody):
    type: Literal["text"] = "text"
    text: str
    cache_control: CacheHint = None
    prompt_cache_breakpoint: CacheHint = None


ContentPart = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ImagePart, Tag("image_url")]
    | Annotated[AudioPart, Tag("input_audio")],
    Discriminator(lambda part: kind if (kind := kind_of(part)) in MEDIA_PARTS else "text"),
]


# The form is checked beforehand, so that an error is about the one that was meant.
Content = Annotated[Annotated[str, Tag("text")] | Annotated[list[ContentPart], Tag("<parts>")], text_or("<parts>")]


def _in_usual_parts(content: Any) -> Any:
    """Convert each part to one of ours. Errors name the part's type: pydantic's own would list every type that a part
    is not.
    """
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return content
    return [_as_usual_part(part) for part in content if kind_of(part) not in THOUGHTS]


def _as_usual_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = kind_of(part)
    if kind in (None, "", "text", *MEDIA_PARTS):
        return part
    if kind not in TEXT_PARTS:
        raise ValueError(f"a part of type {kind!r} is not supported; text, image_url and input_audio are")
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
    content: Annotated[Content | None, BeforeValidator(_in_usual_parts)] = None
    reasoning_content: str | None = optional("The model's reasoning, for templates that use it.")
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_usual_words(cls, message: Any) -> Any:
        if not isinstance(message, dict):
            return message
        found = dict(message)
        if not isinstance(found.get("reasoning_content"), str):
            # It may be in a field of another name, or in parts of the content.
            thoughts, content = found.get("reasoning"), found.get("content")
            if not isinstance(thoughts, str):
                parts = content if isinstance(content, list) else []
                said = [part.get(THOUGHTS[kind]) for part in parts if (kind := kind_of(part) or "") in THOUGHTS]
                thoughts = "".join(text for text in said if isinstance(text, str)) or None
            found["reasoning_content"] = thoughts
        called = found.get("function_call")
        if isinstance(called, dict) and not found.get("tool_calls"):
            found["tool_calls"] = [{"function": called}]
            del found["function_call"]
        if found.get("role") == "function":
            found["role"] = "tool"
        return found

    @property
    def media(self) -> list[MediaPart]:
        """The pictures and sounds, in their order."""
        parts = self.content if isinstance(self.content, list) else []
        return [part for part in parts if not isinstance(part, TextPart)]

    @property
    def text(self) -> str:
        """The text, with a marker in the place of each picture and sound.

        As in llama.cpp, texts side by side are lines of their own beside these, and no line ends at a marker.
        """
        if not isinstance(self.content, list):
            return self.content or ""
        between = "\n" if self.media else ""
        found, after_text = "", False
        for part in self.content:
            is_text = isinstance(part, TextPart)
            found += between * (is_text and after_text) + (part.text if isinstance(part, TextPart) else part.marker)
            after_text = is_text
        return found

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
