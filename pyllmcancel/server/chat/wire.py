"""What a chat's request body is made of: messages, tools, and the form of the answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pyllmcancel.constraints.tool_formats import NAME
from pyllmcancel.server.wire import RequestBody

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
