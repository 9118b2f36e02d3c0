"""The bodies of ``/v1/messages`` and ``/v1/messages/count_tokens``. Fields are Anthropic's unless their description
says otherwise.

Files and `thread` are refused by name, because the server cannot honour them. Tools that Anthropic hosts or
whose schema only its models know, containers and MCP servers are ignored and reported: a conversation that began with
them continues with the client's own tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pyllmcancel.server.anthropic.blocks import TextBlock, TextOr, TurnMessage
from pyllmcancel.server.anthropic.tools import SEARCH, CustomTool, Tool, named_tools
from pyllmcancel.server.limits import MAX_MESSAGES, MAX_TOOLS
from pyllmcancel.server.wire.fields import CacheHint, GeneratingBody, Name, RequestBody, Stop, optional
from pyllmcancel.server.wire.form import FormatBody
from pyllmcancel.server.wire.generation import LoraFields
from pyllmcancel.server.wire.sampling import MAX_INT, MAX_STOPS, NO_EFFECT

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class AutoChoice(RequestBody):
    type: Literal["auto", "any"]
    disable_parallel_tool_use: bool = False


class NamedChoice(RequestBody):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class NoChoice(RequestBody):
    type: Literal["none"]


class EnabledThinking(RequestBody):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1, le=MAX_INT, description="Limit of thinking tokens.")
    display: Literal["summarized", "omitted"] | None = optional(f"{NO_EFFECT} thinking is shown.")


class Thinking(RequestBody):
    type: Literal["adaptive", "between_tools", "disabled"]
    display: Literal["summarized", "omitted"] | None = optional(f"{NO_EFFECT} thinking is shown.")


class JsonOutput(FormatBody):
    type: Literal["json_schema"]
    # A field cannot have the name of one of its class's methods.
    schema_: dict[str, Any] = Field(alias="schema", description="Schema that the answer obeys.")


class OutputConfig(RequestBody):
    effort: Effort | None = optional("Effort of thinking, for models whose chat template supports it.")
    format: JsonOutput | None = optional("Form that the text must have.")


class Metadata(RequestBody):
    user_id: Name | None = optional("Name of the user, for `--supersede user`.")


class CountBody(RequestBody):
    """The body of ``POST /v1/messages/count_tokens``, whose fields messages have, too."""

    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"thread": ()}

    model: Name | None = optional("Any name is served; the answer names the model that generated it.")
    messages: list[TurnMessage] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        description="If the last message is the assistant's, the answer continues it.",
        examples=[[{"role": "user", "content": "Write a function that adds two numbers."}]],
    )
    system: TextOr[TextBlock] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = optional(
        "The client's own tools; tools that Anthropic's servers would run are ignored."
    )
    tool_choice: Annotated[AutoChoice | NamedChoice | NoChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[EnabledThinking | Thinking, Field(discriminator="type")] | None = optional(
        "If left out, the model decides."
    )
    output_config: OutputConfig | None = None
    output_format: JsonOutput | None = optional("As `output_config.format`.")
    cache_control: CacheHint = None
    speed: str | None = optional(f"{NO_EFFECT} there is only one speed.")

    @cached_property
    def offered(self) -> list[tuple[int, CustomTool]]:
        """The tools that the model is shown, with their indexes in `tools`."""
        tools, (named, removed) = self.tools or (), named_tools(self.messages)
        if isinstance(self.tool_choice, NamedChoice):
            named.add(self.tool_choice.name)  # it has to be called
        # Nothing here could find the tools for the model, so it gets them all.
        every = any(tool.type is not None and tool.type.startswith(SEARCH) for tool in tools)
        return [
            (place, tool)
            for place, tool in enumerate(tools)
            if not tool.is_hosted
            and tool.name not in removed
            and (every or not tool.defer_loading or tool.name in named)
        ]


class MessagesBody(CountBody, LoraFields, GeneratingBody):
    """The body of ``POST /v1/messages``."""

    request_class = "chat"

    max_tokens: int = Field(
        ge=0,
        le=MAX_INT,
        description="Limit of the answer's tokens. 0 computes the prompt for the cache, and the answer is empty.",
    )
    stop_sequences: Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = optional(
        "Texts that end the answer, without being part of it."
    )
    temperature: float | None = optional("0 takes the likeliest token.", 0, 100)
    top_p: float | None = optional("Choose among the likeliest tokens that make up this probability.", 0, 1)
    top_k: int | None = optional("Choose among this number of the likeliest tokens; 0 or less: among all.", -1, MAX_INT)
    metadata: Metadata | None = None
    service_tier: str | None = optional(f"{NO_EFFECT} there is only one tier.")
    inference_geo: str | None = optional(f"{NO_EFFECT} it is computed here.")

    @property
    def only_warms(self) -> bool:
        return self.max_tokens == 0

    @property
    def end_user(self) -> str | None:
        named = None if self.metadata is None else self.metadata.user_id
        return super().end_user if named is None else named
