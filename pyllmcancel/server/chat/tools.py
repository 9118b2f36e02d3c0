"""The tools that an answer may call, by `tools` and `tool_choice`: OpenAI's fields, and other APIs' forms of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.wire.fields import RequestBody

NAME = r"[A-Za-z0-9_.:/-]{1,128}"
FLAT = (None, "", "function")  # types of functions that are sent without an object around them


def _schema(value: Any) -> Any:
    if value == []:  # PHP's empty object
        return {}
    if not isinstance(value, dict | bool):
        raise ValueError("a JSON schema must be an object or a boolean")
    return value


# Any other mistake in a schema only means that the schema is not enforced.
Parameters = Annotated[
    Any, AfterValidator(_schema), WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "boolean"}]})
]


class FunctionSpec(RequestBody):
    name: str = Field(pattern=f"^{NAME}$", examples=["get_weather"])
    description: str | None = None
    parameters: Parameters | None = Field(
        None,
        description="JSON schema that the arguments obey. Without a schema there are no arguments.",
        examples=[{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
    )
    strict: bool | None = Field(None, description="Refuse the request if a part of the schema cannot be enforced.")


class Tool(RequestBody):
    type: Literal["function"] = "function"
    function: FunctionSpec

    @model_validator(mode="before")
    @classmethod
    def _with_a_function(cls, tool: Any) -> Any:
        """Convert functions that some clients send as in other APIs: without an object around them."""
        if not isinstance(tool, dict) or tool.get("function") or "name" not in tool or tool.get("type") not in FLAT:
            return tool
        known = {name: tool[name] for name in FunctionSpec.model_fields if name in tool}
        if "input_schema" in tool:
            known.setdefault("parameters", tool["input_schema"])
        rest = {name: value for name, value in tool.items() if name not in (*known, "input_schema")}
        return rest | {"type": "function", "function": known}


class FunctionName(RequestBody):
    name: str


class NamedTool(RequestBody):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestBody):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


class AllowedToolsChoice(RequestBody):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _in_usual_words(choice: Any) -> Any:
    """Convert other APIs' choices to OpenAI's."""
    match choice:
        case "any" | {"type": "any"}:
            return "required"
        case {"type": "none" | "auto" | "required" as kind}:
            return kind
        case {"type": "function" | "tool", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    return choice


ToolChoice = Annotated[
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")],
    BeforeValidator(_in_usual_words),
]


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools that one answer may call, in the order of the request, with their indexes there."""

    tools: tuple[tuple[int, Tool], ...]
    choice: Literal["none", "auto", "required"]

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice != "none"


def tool_plan(given: Sequence[Tool] | None, choice: ToolChoice | None) -> ToolPlan:
    """Return the tools that the model is shown, and whether it must call one; InvalidRequestError if the choice names a
    tool that is not there.
    """
    tools = given or ()
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(f"there are two tools named {name}", f"tools[{index}].function.name")
    allowed: set[str] | None = None  # all
    match choice:
        case NamedTool(function=function):
            allowed, choice = {function.name}, "required"
        case AllowedToolsChoice(allowed_tools=few):
            allowed, choice = {tool.function.name for tool in few.tools}, few.mode
    for name in (allowed or set()) - set(names):
        raise InvalidRequestError(f"there is no tool named {name}", "tool_choice")
    if choice == "required" and not tools:
        raise InvalidRequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
    shown = [(index, tool) for index, tool in enumerate(tools) if allowed is None or names[index] in allowed]
    return ToolPlan(tuple(shown), choice or "auto")
