"""The `tools` of a request as a chat's functions, and the way back from a called function to its tool.

A custom tool is shown as a function of one text, `input`; tools of a namespace get the namespace's name before their
own. Hosted tools cannot be called here: they are ignored and reported. Tools that a search has found, or that were
added later, are in items of the conversation. A search that the client runs is a function, too; beside it the model is
not shown deferred tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.body import NAME, Parameters
from pyllmcancel.server.chat.hosted import Foreign
from pyllmcancel.server.wire.fields import RequestBody, Sent, kind_of, optional

ToolName = Annotated[str, Field(pattern=f"^{NAME}$", examples=["get_weather"])]
CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
CALLABLE = ("function", "custom")
SERVED = (*CALLABLE, "namespace")
SEARCH: Literal["tool_search"] = "tool_search"
# The parameters of a search for tools whose client gives none, as OpenAI's.
SEARCH_PARAMETERS = {
    "type": "object",
    "properties": {"paths": {"type": "array", "items": {"type": "string"}}},
    "required": ["paths"],
    "additionalProperties": False,
}


class FunctionTool(RequestBody):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Parameters | None = optional("JSON schema that the arguments obey.")
    strict: bool | None = optional("Refuse the request if a part of the schema cannot be enforced.")
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    output_schema: dict[str, Any] | None = None

    @property
    def shown(self) -> dict[str, Any]:
        """The fields of the function that the model gets."""
        return {"description": self.description, "parameters": self.parameters, "strict": self.strict}


class CustomFormat(Sent):
    model_config = ConfigDict(extra="allow")

    type: Literal["text", "grammar"]
    syntax: str = ""
    definition: str = ""


class CustomTool(RequestBody):
    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = optional("A grammar is shown to the model, but not enforced.")
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None

    @property
    def shown(self) -> dict[str, Any]:
        texts = [self.description or ""]
        if self.format is not None and self.format.type == "grammar":
            texts.append(f"The input obeys this grammar ({self.format.syntax}):\n{self.format.definition}")
        return {"description": "\n\n".join(filter(None, texts)), "parameters": CUSTOM_PARAMETERS}


class SearchTool(RequestBody):
    """A search for tools that the client runs."""

    type: Literal["tool_search"]
    execution: Literal["client"]
    description: str | None = None
    parameters: Parameters | None = optional("JSON schema that the arguments obey.")

    @property
    def shown(self) -> dict[str, Any]:
        return {"parameters": self.parameters or SEARCH_PARAMETERS, "description": self.description}


def _kind_of(tool: Any) -> str:
    fields = tool if isinstance(tool, dict) else vars(tool) if isinstance(tool, BaseModel) else {}
    kind = fields.get("type")
    if kind == SEARCH and fields.get("execution") == "client":
        return SEARCH
    return kind if kind in SERVED else "hosted"


CallableTool = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[CustomTool, Tag("custom")], Discriminator(_kind_of)
]


class NamespaceTool(RequestBody):
    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: list[CallableTool] = Field(max_length=128)


class HostedTool(Foreign):
    """A tool of OpenAI's servers. It is ignored, with all its fields."""


Tool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[SearchTool, Tag("tool_search")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_kind_of),
]


class NamedChoice(Sent):
    model_config = ConfigDict(extra="allow")

    type: str
    name: str | None = None
    namespace: str | None = None


class AllowedChoice(Sent):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1)


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[AllowedChoice, Tag("allowed")] | Annotated[NamedChoice, Tag("named")],
        Discriminator(lambda choice: "allowed" if kind_of(choice) == "allowed_tools" else "named"),
    ]
)


@dataclass(frozen=True, slots=True)
class Called:
    """The tool behind a function of the chat."""

    kind: Literal["function", "custom", "tool_search"]
    name: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolTable:
    """Tools as the chat has them."""

    functions: list[dict[str, Any]] = field(default_factory=list)  # the chat's `tools`
    places: list[str] = field(default_factory=list)  # the path of each function's tool in the request
    passed_over: list[str] = field(default_factory=list)  # the paths of tools that cannot be called here
    _called: dict[str, Called] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Any], loaded: Mapping[str, Sequence[Any]] | None = None) -> ToolTable:
        """Make the table of a request's tools, and of those that its conversation has `loaded`, by their paths."""
        table = cls()
        searches = any(isinstance(tool, SearchTool) for tool in tools)
        for place, tool, namespace in _flat(tools):
            if isinstance(tool, HostedTool):
                table.passed_over.append(place)
            elif isinstance(tool, SearchTool):
                table._add(place, tool, Called(SEARCH, SEARCH))
            elif not (searches and tool.defer_loading):
                table._add(place, tool, Called(tool.type, tool.name, namespace))
        for where, others in (loaded or {}).items():
            for place, tool, namespace in _flat(others):
                # A search may find a tool again, or one of the request's own.
                if isinstance(tool, FunctionTool | CustomTool) and chat_name(tool.name, namespace) not in table._called:
                    table._add(f"{where}.{place}", tool, Called(tool.type, tool.name, namespace))
        return table

    def _add(self, place: str, tool: FunctionTool | CustomTool | SearchTool, called: Called) -> None:
        name = chat_name(called.name, called.namespace)
        shown = {key: value for key, value in tool.shown.items() if value is not None}
        self.functions.append({"type": "function", "function": {"name": name, **shown}})
        self.places.append(place)
        self._called[name] = called

    def called(self, name: str) -> Called:
        """The tool behind a function that the model has called."""
        return self._called.get(name) or Called("function", name)

    def choice(self, choice: Any) -> Any:
        """Return the chat's `tool_choice`; InvalidRequestError if it names a tool that cannot be called."""
        match choice:
            case AllowedChoice(mode=mode, tools=tools):
                own = [tool for tool in tools if tool.type in (*CALLABLE, SEARCH)] or tools
                allowed = {"mode": mode, "tools": [self._named(tool) for tool in own]}
                return {"type": "allowed_tools", "allowed_tools": allowed}
            case NamedChoice():
                return self._named(choice)
            case _:
                return choice

    def _named(self, choice: NamedChoice) -> dict[str, Any]:
        if choice.type == SEARCH and self.called(SEARCH).kind == SEARCH:
            return {"type": "function", "function": {"name": SEARCH}}
        if choice.type not in CALLABLE or choice.name is None:
            raise InvalidRequestError(f"a tool of type {choice.type!r} cannot be called", "tool_choice")
        return {"type": "function", "function": {"name": chat_name(choice.name, choice.namespace)}}


def _flat(tools: Sequence[Any]) -> Iterator[tuple[str, Any, str | None]]:
    """Each tool with its place and its namespace."""
    for index, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            for inner, member in enumerate(tool.tools):
                yield f"tools[{index}].tools[{inner}]", member, tool.name
        else:
            yield f"tools[{index}]", tool, None


def names_of(tools: Sequence[Any]) -> list[str]:
    """Return the names by which the model knows these tools, as far as they can be called."""
    own = [(tool, namespace) for _, tool, namespace in _flat(tools) if isinstance(tool, FunctionTool | CustomTool)]
    return [chat_name(tool.name, namespace) for tool, namespace in own]


def chat_name(name: str, namespace: str | None) -> str:
    """Return the name by which the model knows a tool."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str) -> str:
    """Return a custom tool's input as the arguments of the function that stands for it."""
    return json.dumps({"input": text}, ensure_ascii=False)
