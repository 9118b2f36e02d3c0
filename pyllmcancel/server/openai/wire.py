"""The OpenAI API's request bodies, as pydantic models; every field is OpenAI's unless its description says otherwise.

What is refused, because nothing here could honour it: audio, images and files in messages, `web_search_options`,
`moderation`, tools that are not functions, and `functions` with `function_call`, which `tools` have replaced. What is
accepted without any effect says so, and why that is no lie. The rest is refused by name as an unsupported field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, WithJsonSchema

from pyllmcancel.server.limits import MAX_MESSAGES, MAX_PROMPTS
from pyllmcancel.server.llama.wire import MAX_MS, Stop
from pyllmcancel.server.openai.wire_chat import Message, ResponseFormat, Tool, ToolChoice
from pyllmcancel.server.openai.wire_sampling import SamplingFields, extra
from pyllmcancel.server.wire_common import GeneratingBody, RequestBody, TokenId

Tokens = Annotated[list[TokenId], Field(fail_fast=True)]
MAX_STOPS = 16
MAX_CHOICES = 128
MOST_LOGPROBS = 20
MOST_TOKENS = 2**31 - 1
NO_EFFECT = "Accepted, and without effect:"

# OpenAI's schema allows null for these, and means false.
Switch = Annotated[
    bool,
    BeforeValidator(lambda value: False if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
]


class StreamOptions(RequestBody):
    include_usage: Switch = Field(False, description="End with a chunk that has the usage and no choices.")
    include_obfuscation: bool | None = Field(
        None, description=f"{NO_EFFECT} padding hides the lengths of tokens from who can watch the network."
    )


class PromptCacheOptions(RequestBody):
    mode: Literal["implicit"] | None = None
    ttl: str | None = None


class GenerationBody(SamplingFields, GeneratingBody):
    """What the two endpoints have in common."""

    stream: Switch = Field(False, description="Answer in server-sent events, as the text comes.")
    stream_options: StreamOptions | None = Field(None, description="Only together with `stream`.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices for each prompt; 1 if left out.")
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = Field(
        None, description="Texts that end the answer, and are not part of it.", examples=[["\n\n"]]
    )
    grammar: str | None = Field(
        None,
        description=extra("GBNF whose root rule is `root`: the answer obeys it."),
        examples=['root ::= "yes" | "no"'],
    )
    json_schema: dict[str, Any] | None = Field(
        None, description=extra("The answer is JSON that obeys this schema."), examples=[{"type": "object"}]
    )
    cache_prompt: bool | None = Field(None, description=extra("Start from what is known of the prompt (the default)."))
    t_max_prompt_ms: int | None = Field(
        None, ge=-1, le=MAX_MS, description=extra("Most time for the prompt; then the answer is empty.")
    )
    t_max_predict_ms: int | None = Field(
        None, ge=-1, le=MAX_MS, description=extra("Most time from the first token on, once there is a line feed.")
    )
    id_slot: int | None = Field(
        None, ge=-1, description=extra(f"{NO_EFFECT} every slot finds what any other has computed.")
    )
    timings_per_token: Literal[False] | None = Field(None, description=extra("Not supported here; `usage` is."))
    return_progress: Literal[False] | None = Field(
        None, description=extra("Not supported here; llama-server's own endpoint does it.")
    )
    metadata: Annotated[dict[str, Any] | None, AfterValidator(lambda _: None)] = Field(
        None, description=f"{NO_EFFECT} nothing is stored."
    )
    store: bool | None = Field(None, description=f"{NO_EFFECT} nothing is stored.")
    service_tier: str | None = Field(None, description=f"{NO_EFFECT} there is one tier.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description=f"{NO_EFFECT} it limits how long a prefix is kept, and here it is kept in memory only."
    )
    prompt_cache_options: PromptCacheOptions | None = Field(
        None, description=f"{NO_EFFECT} what is asked for is what is done: any known prefix is used."
    )

    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    ) = Field(
        examples=["def hello_world():"],
        description="Text, or tokens, or a list of either. Special tokens may be spelled in a text.",
    )
    max_tokens: int | None = Field(
        16, ge=0, le=MOST_TOKENS, description="0 only computes the prompt; null goes on until the context is full."
    )
    suffix: str | None = Field(
        None,
        description="What stands after the answer: fills the gap, for models that can.",
        examples=["\n    return a"],
    )
    best_of: int | None = Field(
        None,
        ge=1,
        le=MAX_CHOICES,
        description="Generate so many, answer the `n` whose tokens were likeliest on average.",
    )
    echo: Switch = Field(False, description="Begin the text, and the logprobs, with the prompt's.")
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="Logprobs of the tokens, and so many of the likeliest in each place."
    )


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        fail_fast=True,
        examples=[[{"role": "user", "content": "Write a function that adds two numbers."}]],
    )
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS, description="As `max_completion_tokens`.")
    max_completion_tokens: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="If left out, until the model ends, or the context is full."
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
    def limit(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
