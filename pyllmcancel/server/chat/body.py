"""A chat's request body, which is OpenAI's, and what it asks of the engine.

What is refused, because nothing here could honour it: audio, images and files in messages, `web_search_options`,
`moderation`, tools that are not functions, and `functions` with `function_call`, which `tools` have replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, StrictBool

from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.request import GenerationParams
from pyllmcancel.server.chat.wire import JsonObjectFormat, JsonSchemaFormat, Message, ResponseFormat, Tool, ToolChoice
from pyllmcancel.server.limits import MAX_MESSAGES
from pyllmcancel.server.wire_generation import MOST, MOST_LOGPROBS, NO_EFFECT, GenerationBody, extra

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.sampling import SamplingParams

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    prompt_field = "messages"

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

    def _named_schema(self) -> NamedSchema | None:
        found: NamedSchema | None = None
        match self.response_format:
            case JsonObjectFormat(schema_=given):
                found = NamedSchema(given or ANY_OBJECT, "response_format")
            case JsonSchemaFormat(json_schema=named):
                schema = ANY_OBJECT if named.schema_ is None else named.schema_
                found = NamedSchema(schema, "response_format", named.strict is False)
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
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            constraint=constraint,
            visible_tokens=visible,
            **self.limits(),
        )
