"""The tools that an answer may call, by `tools`, `tool_choice` and `parallel_tool_calls` together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.tool_fields import AllowedToolsChoice, NamedTool

if TYPE_CHECKING:
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.chat.tool_fields import Tool


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools that one answer may call, in the order of the request, with their indexes there."""

    tools: tuple[tuple[int, Tool], ...]
    choice: Literal["none", "auto", "required"]

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice != "none"


def tool_plan(body: ChatBody) -> ToolPlan:
    """Return the tools that the model is shown, and whether it must call one.

    Raises
    ------
    InvalidRequestError
        The choice names a tool that is not there.
    """
    tools = body.tools or []
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(f"there are two tools named {name}", f"tools[{index}].function.name")
    allowed, choice = _choice(body)
    if allowed is not None:
        for name in allowed - set(names):
            raise InvalidRequestError(f"there is no tool named {name}", "tool_choice")
    if choice == "required" and not tools:
        raise InvalidRequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
    shown = [(index, tool) for index, tool in enumerate(tools) if allowed is None or names[index] in allowed]
    return ToolPlan(tuple(shown), choice)


def _choice(body: ChatBody) -> tuple[set[str] | None, Literal["none", "auto", "required"]]:
    """Return the names that may be called, None for all, and whether one must be."""
    match body.tool_choice:
        case NamedTool(function=function):
            return {function.name}, "required"
        case AllowedToolsChoice(allowed_tools=allowed):
            return {tool.function.name for tool in allowed.tools}, allowed.mode
        case None:
            return None, "auto"
        case choice:
            return None, choice
