"""The fields of OpenAI's two endpoints that generate; each is OpenAI's unless its description says otherwise.

Those that say how the next token is chosen are OpenAI's too, and llama.cpp's under llama-server's names. What is
accepted without any effect says so, and why that is no lie; the rest is refused by name as an unsupported field.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator

from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.sampling import SAMPLERS
from pyllmcancel.server.limits import MAX_BIASES, MAX_FIELD_PATH
from pyllmcancel.server.sampling_fields import MOST, SamplerFields
from pyllmcancel.server.wire import (
    MAX_MS,
    SAMPLER_NAMES,
    GeneratingBody,
    RequestBody,
    Stop,
    sampling_values,
    seconds,
    stop_strings,
)

if TYPE_CHECKING:
    from pyllmcancel.sampling import SamplingParams

# JSON spells the keys of an object as texts.
BiasedToken = Annotated[int, Field(ge=0, lt=2**31)]
MAX_STOPS = 16
MAX_CHOICES = 128
MOST_LOGPROBS = 20
NOT_OPENAI = "Not in OpenAI's API."
NO_EFFECT = "Accepted, and without effect:"

# OpenAI's schema allows null for these, and means false.
Switch = Annotated[
    bool,
    BeforeValidator(lambda value: False if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
]


def extra(meaning: str) -> str:
    return f"{NOT_OPENAI} {meaning}"


class SamplingFields(SamplerFields):
    """What is null, or left out, is as the server was started with."""

    temperature: float | None = Field(None, ge=0, le=100, description="0 takes the likeliest token.")
    top_p: float | None = Field(None, ge=0, le=1, description="Choose among the likeliest tokens of that much mass.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="For each time that a token has occurred.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="For tokens that have occurred.")
    seed: int | None = Field(
        None,
        ge=-(2**63),
        lt=2**64,
        description="The same seed gives the same text; a random one if left out.",
        examples=[7],
    )
    logit_bias: dict[BiasedToken, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None,
        max_length=MAX_BIASES,
        description="Added to the logits of tokens, by id; -100 bans one.",
        examples=[{"12": -100}],
    )

    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description=extra("No sequence goes on past these.")
    )
    samplers: list[str] | None = Field(
        None, max_length=64, description=extra("Which apply, in which order."), examples=[list(SAMPLERS)]
    )
    ignore_eos: bool | None = Field(None, description=extra("Go on past the end of the answer."))
    post_sampling_probs: bool | None = Field(
        None, description=extra("Logprobs of what truncation and temperature left, not of what the model said.")
    )

    @field_validator("samplers")
    @classmethod
    def _known_samplers(cls, given: list[str] | None) -> list[str] | None:
        unknown = [name for name in given or [] if name not in SAMPLER_NAMES]
        if unknown:
            raise ValueError(f"unknown samplers: {', '.join(unknown)}")
        return given and [SAMPLER_NAMES[name] for name in given]

    def given(self) -> dict[str, Any]:
        """Fields of SamplingParams, as far as the client set them."""
        found = sampling_values(self, SamplingFields.model_fields)
        if self.seed is not None:
            found["seed"] = self.seed % 2**32
        # OpenAI: -100 bans a token.
        biases = (self.logit_bias or {}).items()
        found["logit_bias"] = tuple((token, float("-inf") if bias == -100 else bias) for token, bias in biases)
        return found


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
    n_predict: int | None = Field(
        None,
        ge=-1,
        le=MOST,
        description=extra("llama-server's name for `max_tokens`, where that is not given; -1: no limit."),
    )
    response_fields: list[Annotated[str, Field(max_length=MAX_FIELD_PATH)]] | None = Field(
        None, max_length=128, fail_fast=True, description=extra(f"{NO_EFFECT} the answer is OpenAI's.")
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

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def answer_schema(self, *, calls: bool = False) -> NamedSchema | None:
        """The one schema that the text has to obey; `calls`: tools may be called besides.

        Raises
        ------
        InvalidRequestError
            Two fields contradict each other.
        """
        schema = self._named_schema()
        if self.grammar and (schema is not None or calls):
            message = "grammar cannot be combined with tools or another form of the answer"
            raise InvalidRequestError(message, "grammar")
        return schema

    def _named_schema(self) -> NamedSchema | None:
        return None if self.json_schema is None else NamedSchema(self.json_schema, "json_schema")

    def check(self) -> None:
        """Raise InvalidRequestError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options are for streams only", "stream_options")

    def sampling(self, defaults: SamplingParams, n_logprobs: int | None) -> SamplingParams:
        """How to choose tokens; `defaults` for what the client leaves open."""
        return replace(defaults, **self.given(), grammar=self.grammar or "", n_logprobs=n_logprobs)

    def limits(self) -> dict[str, Any]:
        """Fields of GenerationParams that the two endpoints name alike."""
        return {
            "stop": stop_strings(self.stop),
            "timeout": self.timeout,
            "reuse_prefix": self.cache_prompt is not False,
            "max_prompt_seconds": seconds(self.t_max_prompt_ms),
            "max_predict_seconds": seconds(self.t_max_predict_ms),
        }
