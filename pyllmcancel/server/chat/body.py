"""A chat's request body, which is OpenAI's: messages, tools, the form of the answer; and what it asks of the engine.

What is refused, because nothing here could honour it: audio, images and files in messages, `web_search_options`,
`moderation`, tools that are not functions, and `functions` with `function_call`, which `tools` have replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from pyllmcancel.constraints import bounded
from pyllmcancel.constraints.tool_formats import NAME
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.request import GenerationParams
from pyllmcancel.server.limits import MAX_MESSAGES
from pyllmcancel.server.sampling_fields import MOST
from pyllmcancel.server.wire import RequestBody
from pyllmcancel.server.wire_generation import MOST_LOGPROBS, NO_EFFECT, GenerationBody, extra

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.sampling import SamplingParams

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# Said by several clients of single parts; a prefix that is known is used here in any case.
CacheHint = Annotated[Any, Field(description="Accepted, and without effect: any known prefix is used.")]


class TextPart(RequestBody):
    type: Literal["text"]
    text: str
    cache_control: CacheHint = None
    prompt_cache_breakpoint: CacheHint = None


def _only_text(content: Any) -> Any:
    """In words: pydantic's would list every type that a part is not."""
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"a part of type {kind!r} is not supported here, only text is")
    return content


class CalledFunction(BaseModel):
    name: str = Field(min_length=1)
    arguments: str = Field(description="JSON.")


class CalledTool(BaseModel):
    """A past call. Clients send back what they got, with what they have made of it: other fields are passed over."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    # Templates may use fields that we do not know.
    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=64, description="One that the model's chat template knows.")
    content: Annotated[str | list[TextPart] | None, BeforeValidator(_only_text)] = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        """As templates expect it: without the fields that it has not."""
        found = (self.model_extra or {}) | {"role": self.role, "content": self.text}
        if self.tool_calls:
            found["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        return found


class FunctionSpec(RequestBody):
    name: str = Field(pattern=f"^{NAME}$", examples=["get_weather"])
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None,
        description="JSON schema of the arguments, which obey it; left out: there are none.",
        examples=[{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}],
    )
    strict: bool | None = Field(None, description="Refuse a schema of which a part cannot be enforced.")


class Tool(RequestBody):
    type: Literal["function"]
    function: FunctionSpec


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


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedToolsChoice, Field(discriminator="type")]
)


class TextFormat(RequestBody):
    type: Literal["text"]


class JsonObjectFormat(RequestBody):
    type: Literal["json_object"]
    # A field cannot be called as a method of its class is.
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="Not in OpenAI's API: llama-server's way to name one."
    )


class NamedSchema(RequestBody):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=["answer"])
    description: str | None = None
    schema_: dict[str, Any] | None = Field(
        None,
        alias="schema",
        description="What the answer obeys; left out: any object.",
        examples=[{"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}],
    )
    strict: bool | None = Field(None, description="false: pass over what cannot be enforced, instead of refusing it.")


class JsonSchemaFormat(RequestBody):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    prompt_field = "messages"
    request_class = "chat"

    messages: list[Message] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        examples=[[{"role": "user", "content": "Write a function that adds two numbers."}]],
    )
    max_tokens: int | None = Field(None, ge=1, le=MOST, description="As `max_completion_tokens`.")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MOST, description="If left out, until the model ends, or the context is full."
    )
    logprobs: bool | None = Field(None, description="Logprobs of the tokens.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="So many of the likeliest in each place; needs `logprobs`."
    )
    response_format: ResponseFormat | None = Field(
        None, description="What the text must be.", examples=[{"type": "json_object"}]
    )
    tools: Annotated[list[Tool], Field(max_length=128)] | None = Field(None, description="Functions it may call.")
    tool_choice: ToolChoice | None = Field(None, description="`auto` if there are tools.", examples=["auto"])
    parallel_tool_calls: bool | None = Field(
        None, description="Whether an answer may call several times (the default)."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description=extra("Variables of the model's chat template."), examples=[{"enable_thinking": False}]
    )
    add_generation_prompt: StrictBool | None = Field(
        None, description=extra("End the prompt where the assistant's turn begins (the default).")
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="For models whose chat template knows of it; refused for others."
    )
    modalities: list[Literal["text"]] | None = Field(None, description="Text, and nothing else.")
    verbosity: Literal["medium"] | None = Field(None, description="Models here have no other setting.")
    prediction: dict[str, Any] | None = Field(
        None, description=f"{NO_EFFECT} it may only make an answer faster, never another one."
    )

    @property
    def only_warms(self) -> bool:
        return self.most_tokens == 0

    @property
    def most_tokens(self) -> int | None:
        """Of an answer; None: until the context is full."""
        limits = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        given = next((limit for limit in limits if limit is not None), -1)
        return None if given < 0 else given

    def _named_schema(self) -> bounded.NamedSchema | None:
        found: bounded.NamedSchema | None = None
        match self.response_format:
            case JsonObjectFormat(schema_=given):
                found = bounded.NamedSchema(given or ANY_OBJECT, "response_format")
            case JsonSchemaFormat(json_schema=named):
                schema = ANY_OBJECT if named.schema_ is None else named.schema_
                found = bounded.NamedSchema(schema, "response_format", named.strict is False)
        if found is not None and self.json_schema is not None:
            raise InvalidRequestError("json_schema and response_format are two names of the same", "json_schema")
        return found or super()._named_schema()

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")

    def generation_params(
        self, defaults: SamplingParams, constraint: ConstraintFactory | None, visible: frozenset[int]
    ) -> GenerationParams:
        """What to generate; `defaults` for what the client leaves open."""
        return GenerationParams(
            sampling=self.sampling(defaults, (self.top_logprobs or 0) if self.logprobs else None),
            n=self.n or 1,
            max_tokens=self.most_tokens,
            constraint=constraint,
            visible_tokens=visible,
            **self.limits(),
        )
