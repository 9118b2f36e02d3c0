"""The body of ``POST /v1/responses``, and its translation into a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, Tag

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.body import ChatBody, Effort
from pyllmcancel.server.limits import MAX_MESSAGES, MAX_NAME, MAX_TOOLS
from pyllmcancel.server.responses.conversation import Conversation
from pyllmcancel.server.responses.input_items import AnyItem, Item, LoadedTools, MessageItem, OnlyKnown, ReferenceItem
from pyllmcancel.server.responses.tools import CustomTool, Tool, ToolChoice, ToolTable
from pyllmcancel.server.wire import form
from pyllmcancel.server.wire.fields import GeneratingBody, RequestBody, Sent, optional, text_or
from pyllmcancel.server.wire.form import FormatBody
from pyllmcancel.server.wire.generation import MAX_LOGPROBS, LoraFields
from pyllmcancel.server.wire.sampling import MAX_INT, NO_EFFECT, SamplingFields, Switch

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, ENCRYPTED)

MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
# Fields of the chat, by this API's names for them.
RENAMED = {
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
}


class Reasoning(RequestBody):
    effort: Effort | None = optional("Effort of reasoning, where the model's chat template supports it.")
    summary: str | None = optional(f"{NO_EFFECT} models here show the reasoning itself, no summary.")
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class JsonObject(FormatBody):
    type: Literal["json_object"]


class JsonSchema(FormatBody):
    type: Literal["json_schema"]
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["answer"])
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema", description="Schema that the answer obeys.")
    strict: bool | None = optional("If false, parts that cannot be enforced are reported, not refused.")


TextFormat = Annotated[form.TextFormat | JsonObject | JsonSchema, Field(discriminator="type")]


class TextConfig(FormatBody):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = optional("Ignored: models here have none.")


class StreamOptions(Sent):
    model_config = ConfigDict(extra="allow")

    include_obfuscation: bool | None = optional(
        f"{NO_EFFECT} padding would hide the lengths of tokens from those who watch the network."
    )


def check_include(include: Sequence[str]) -> None:
    """Raise InvalidRequestError for a name that cannot be included."""
    for index, name in enumerate(include):
        if name not in INCLUDABLE:
            raise InvalidRequestError(f"{name[:100]!r} cannot be included", f"include[{index}]")


Items = Annotated[list[Item], Field(max_length=MAX_MESSAGES, fail_fast=True), OnlyKnown]
Input = Annotated[Annotated[str, Tag("text")] | Annotated[Items, Tag("<items>")], text_or("<items>")]


class ResponsesBody(SamplingFields, LoraFields, GeneratingBody):
    """The body of ``POST /v1/responses``."""

    request_class = "chat"
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"conversation": (), "prompt": ()}

    input: Input = Field(description="Input that the model answers: a text, or items.", examples=["Add two numbers."])
    instructions: str | None = optional("Instructions that the model gets before everything else.")
    stream: Switch = Field(False, description="Answer in server-sent events while the response is generated.")
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = optional("Limit of the answer's tokens, reasoning included.", 1, MAX_INT)
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = optional(
        "Functions and custom tools that the model may call; hosted tools such as web search are ignored."
    )
    tool_choice: ToolChoice | None = optional("`auto` is the default with tools.", examples=["auto"])
    parallel_tool_calls: bool | None = optional("Allow several calls in an answer (the default).")
    max_tool_calls: int | None = optional(f"{NO_EFFECT} it counts hosted tools' calls.", 0)
    text: TextConfig | None = optional("Form that the text must have.")
    reasoning: Reasoning | None = None
    top_logprobs: int | None = optional(f"With `{LOGPROBS}` in `include`: likeliest tokens to report.", 0, MAX_LOGPROBS)
    include: list[str] | None = optional(f"Of {', '.join(INCLUDABLE)}.", max_length=32)
    truncation: Literal["auto", "disabled"] | None = optional("An input too long is refused, never cut.")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    store: bool | None = optional("Store the response, so that it can be requested later (the default).")
    background: bool | None = optional("Answer at once; the response is computed without a client, too.")
    previous_response_id: str | None = optional(
        "The stored response that this input continues.", min_length=1, max_length=MAX_NAME
    )
    service_tier: str | None = optional(f"{NO_EFFECT} there is only one tier.")
    prompt_cache_retention: str | None = optional(f"{NO_EFFECT} prefixes are kept in memory only.")
    client_metadata: dict[str, Any] | None = optional(f"{NO_EFFECT} it belongs to the client.")

    @property
    def items(self) -> list[AnyItem]:
        """The input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input

    @property
    def references(self) -> list[str]:
        """Ids of stored items that the input refers to."""
        return [item.id for item in self.items if isinstance(item, ReferenceItem)]

    def table(self) -> ToolTable:
        loaded = {f"input[{n}]": item.tools for n, item in enumerate(self.items) if isinstance(item, LoadedTools)}
        return ToolTable.of(self.tools or [], loaded)

    @property
    def runs_alone(self) -> bool:
        return bool(self.background)

    def includes(self, what: str) -> bool:
        return what in (self.include or ())

    def check(self, engine: Engine) -> None:
        check_include(self.include or ())
        if self.background and self.store is False:
            raise InvalidRequestError("a response in the background needs store to be true", "background")

    def note_passed_over(self, table: ToolTable) -> None:
        """Note known fields that have no effect here; ApiError if such fields are refused."""
        for place in table.passed_over:
            self.ignore(place)
        for index, tool in enumerate(self.tools or ()):
            if isinstance(tool, CustomTool) and tool.format is not None and tool.format.type == "grammar":
                self.ignore(f"tools[{index}].format")
        if self.truncation == "auto":
            self.ignore("truncation")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            self.ignore("text.verbosity")

    def chat(self, table: ToolTable, items: Sequence[AnyItem]) -> ChatBody:
        """Return the conversation to continue: its items, and the earlier ones."""
        conversation = Conversation(self.instructions, self.ignore)
        conversation.add(items)
        if not conversation.messages:
            raise InvalidRequestError("the input is empty: there is nothing to answer", "input")
        fields: dict[str, Any] = {name: getattr(self, name) for name in SHARED} | {
            "messages": conversation.messages,
            # Nobody reads a response in the background, so unread output does not pause it.
            "stream": self.stream and not self.background,
            "max_completion_tokens": self.max_output_tokens,
            "response_format": self._format(),
            "logprobs": True if self.includes(LOGPROBS) else None,
            "top_logprobs": self.top_logprobs if self.includes(LOGPROBS) else None,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
        }
        if table.functions:
            fields["tools"] = table.functions
            fields["parallel_tool_calls"] = self.parallel_tool_calls
        fields["tool_choice"] = table.choice(self.tool_choice)
        chat = ChatBody.model_validate({name: value for name, value in fields.items() if value is not None})
        chat._ignore = lambda name: self.ignore(RENAMED.get(name, name))
        return chat

    def _format(self) -> dict[str, Any] | None:
        match self.text and self.text.format:
            case JsonObject():
                return {"type": "json_object"}
            case JsonSchema() as named:
                given = {"name": named.name, "schema": named.schema_, "strict": named.strict}
                return {"type": "json_schema", "json_schema": given}
            case _:
                return None


# Fields that have the same names in the chat.
SHARED = tuple({**SamplingFields.model_fields, **LoraFields.model_fields, **GeneratingBody.model_fields})
