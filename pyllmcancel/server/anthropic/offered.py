"""Which of a body's tools the model is shown.

A tool that is deferred waits until the conversation names it: in what a search for tools has found, in a change of the
tools, or in a call. Tools that Anthropic's servers run cannot be called here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyllmcancel.server.anthropic.blocks import ForeignBlock, ToolResultBlock, ToolUseBlock

if TYPE_CHECKING:
    from pyllmcancel.server.anthropic.body import CustomTool, HostedTool, TurnMessage

SEARCH = "tool_search_tool"  # how the hosted tools that search for others begin


def offered(
    tools: Sequence[CustomTool | HostedTool], messages: Iterable[TurnMessage], chosen: str | None
) -> list[tuple[int, CustomTool]]:
    """The tools that are shown, with their places.

    Parameters
    ----------
    chosen
        The one that has to be called.
    """
    # Nothing here could find them for the model, so it gets them all.
    found = any(tool.type is not None and tool.type.startswith(SEARCH) for tool in tools)
    named, removed = named_tools(messages)
    return [
        (place, tool)
        for place, tool in enumerate(tools)
        if not tool.is_hosted
        and tool.name not in removed
        and (found or not tool.defer_loading or tool.name in named or tool.name == chosen)
    ]


def named_tools(messages: Iterable[TurnMessage]) -> tuple[set[str], set[str]]:
    """The tools that a conversation has made known, and those that it has taken away again."""
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
    """The tools that a block of this kind names, and whether they are there from then on."""
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
