"""The tools of a body, and the choice of those that the model is shown.

A deferred tool is shown only after the conversation has named it: in the result of a search for tools, in a change of
the tools, or in a call. Tools that Anthropic's servers run cannot be called here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from pyllmcancel.server.anthropic.blocks import ForeignBlock, ToolResultBlock, ToolUseBlock, TurnMessage
from pyllmcancel.server.chat.body import Parameters
from pyllmcancel.server.chat.hosted import Foreign
from pyllmcancel.server.wire.fields import CacheHint, RequestBody, kind_of, optional

SEARCH = "tool_search_tool"  # prefix of the hosted tools that search for others


class CustomTool(RequestBody):
    is_hosted: ClassVar[Literal[False]] = False

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, examples=["get_weather"])
    description: str | None = None
    input_schema: Parameters = Field(
        description="JSON schema that the input obeys.",
        examples=[{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
    )
    strict: bool | None = optional("Refuse the request if a part of the schema cannot be enforced.")
    eager_input_streaming: bool | None = optional(
        "Stream the input as the model writes it, which may not be JSON; otherwise whole members of the input."
    )
    defer_loading: bool = optional(
        "Show the tool to the model only after the conversation has named it, for example in a `tool_reference`.",
        default=False,
    )
    cache_control: CacheHint = None

    @property
    def function(self) -> dict[str, Any]:
        """The function that the model is shown."""
        fields = {"name": self.name, "description": self.description}
        return fields | {"parameters": self.input_schema, "strict": self.strict}


class HostedTool(Foreign):
    """A tool that Anthropic's servers run, or that only its models know. It is ignored, with all its fields."""

    is_hosted: ClassVar[Literal[True]] = True


def _of_which(tool: Any) -> str:
    return "<custom>" if kind_of(tool) in (None, "", "custom") else "<hosted>"


Tool = Annotated[
    Annotated[CustomTool, Tag("<custom>")] | Annotated[HostedTool, Tag("<hosted>")], Discriminator(_of_which)
]


def named_tools(messages: Iterable[TurnMessage]) -> tuple[set[str], set[str]]:
    """Return the tools that a conversation has made known, without those that it has removed again."""
    named, removed = set[str](), set[str]()
    for name, is_there in _changes(messages):
        (named if is_there else removed).add(name)
        (removed if is_there else named).discard(name)
    return named, removed


def _changes(messages: Iterable[TurnMessage]) -> Iterator[tuple[str, bool]]:
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            match block:
                case ToolUseBlock(name=name):
                    yield name, True
                case ToolResultBlock(content=list() as parts):
                    for part in parts:
                        if isinstance(part, ForeignBlock):
                            yield from tool_changes(part.type, part.fields)
                case ForeignBlock():
                    yield from tool_changes(block.type, block.fields)


def tool_changes(kind: Any, fields: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Return the tools that a block of this kind names, and whether they are known from then on."""
    match kind, fields:
        case "tool_reference", {"tool_name": str(name)}:
            yield name, True
        case "tool_addition" | "tool_removal", {"tool": {"name": str(name)}}:
            yield name, kind == "tool_addition"
        case "tool_search_tool_result", {"content": {"tool_references": list(found)}}:
            for one in found:
                if isinstance(one, dict):
                    yield from tool_changes("tool_reference", one)
        case "compaction", {"tool_changes": list(changes)}:
            for one in changes:
                if isinstance(one, dict) and one.get("type") in ("tool_addition", "tool_removal"):
                    yield from tool_changes(one["type"], one)
