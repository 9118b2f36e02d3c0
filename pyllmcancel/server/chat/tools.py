"""A chat's `tools` and `tool_choice`: which functions may be called, in which form, and whether one must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyllmcancel.constraints.tool_formats import Function, ToolFormat, control_token, tool_format
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.body import AllowedToolsChoice, NamedTool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyllmcancel._native import Model
    from pyllmcancel.chat_template import ChatTemplate
    from pyllmcancel.server.chat.body import ChatBody, Tool

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How one answer may call tools.

    Attributes
    ----------
    shown
        All tools, as the request has them.
    callable
        The tools that may be called, with their places among all.
    required
        Whether the answer must call.
    """

    format: ToolFormat
    shown: tuple[dict[str, Any], ...]
    callable: tuple[tuple[int, Function], ...]
    required: bool
    parallel: bool

    def visible_tokens(self, model: Model) -> frozenset[int]:
        """Control tokens that must show in the text, so that calls can be told from it."""
        return frozenset(token for mark in self.format.marks if (token := control_token(model, mark)) is not None)


def tool_plan(body: ChatBody, template: ChatTemplate) -> ToolPlan | None:
    """None for an answer that calls nothing.

    Raises
    ------
    InvalidRequestError
        The choice names what is not among the tools.
    """
    tools = body.tools or []
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(f"there are two tools of the name {name}", f"tools[{index}].function.name")
    allowed, required = _choice(body)
    if allowed is not None:
        for name in allowed - set(names):
            raise InvalidRequestError(f"there is no tool of the name {name}", "tool_choice")
    if required and not tools:
        raise InvalidRequestError("tool_choice asks for a call, and there are no tools", "tool_choice")
    if not tools or body.tool_choice == "none":
        return None
    callable_tools = (
        (index, _function(tool)) for index, tool in enumerate(tools) if allowed is None or names[index] in allowed
    )
    return ToolPlan(
        tool_format(template.source, knows_tools=template.knows_tools),
        tuple(tool.model_dump(exclude_none=True) for tool in tools),
        tuple(callable_tools),
        required,
        body.parallel_tool_calls is not False,
    )


def _choice(body: ChatBody) -> tuple[set[str] | None, bool]:
    """The names that may be called, None for all, and whether one must be."""
    match body.tool_choice:
        case NamedTool(function=function):
            return {function.name}, True
        case AllowedToolsChoice(allowed_tools=allowed):
            return _names(allowed.tools), allowed.mode == "required"
        case choice:
            return None, choice == "required"


def _names(tools: Iterable[NamedTool]) -> set[str]:
    return {tool.function.name for tool in tools}


def _function(tool: Tool) -> Function:
    spec = tool.function
    return Function(spec.name, NO_ARGUMENTS if spec.parameters is None else spec.parameters, bool(spec.strict))
