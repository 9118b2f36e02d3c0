"""The OpenAI API's request bodies, as pydantic models, and how they become ours."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pyllmcancel.request import GenerationParams
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.submission import MAX_SESSION_ID

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = list[TokenId]
MAX_STOPS = 16
MAX_TIMEOUT = 7 * 86_400.0  # seconds


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class GenerationBody(BaseModel):
    """What the two endpoints have in common; every field is OpenAI's unless its description says otherwise."""

    # An unknown field is named rather than ignored: the client would believe that it had an effect.
    model_config = ConfigDict(extra="forbid")

    model: str = Field("", description="Any name is served; the answer names the model that did it.")
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="Not in OpenAI's API.")
    min_p: float | None = Field(None, ge=0, le=1, description="Not in OpenAI's API.")
    n: int = Field(1, ge=1, le=128)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repeat_penalty: float | None = Field(None, gt=0, le=100, description="Not in OpenAI's API.")
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    ignore_eos: bool = Field(False, description="Not in OpenAI's API: go on past the end of the answer.")
    session_id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SESSION_ID,
        description="Ours: a newer request of a session cancels the older one.",
    )
    timeout: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT, description="Ours: deadline in seconds, time in the queue included."
    )
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    # Accepted because clients send them, and without any effect by their own definition.
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, body: Any) -> Any:
        """JSON can spell half of a surrogate pair; neither a tokenizer nor an answer of ours can."""
        if isinstance(body, dict):
            try:
                json.dumps(body, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise ValueError("the text holds half of a surrogate pair, which is not Unicode") from error
        return body

    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in stops if stop)

    def params(self, defaults: SamplingParams, n_logprobs: int | None, max_tokens: int | None) -> GenerationParams:
        """Ours; `defaults` for what the client leaves open."""
        given = {
            name: value
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "frequency_penalty",
                "presence_penalty",
                "repeat_penalty",
            )
            if (value := getattr(self, name)) is not None
        }
        values = {name: getattr(defaults, name) for name in SamplingParams.__slots__} | given
        values["seed"] = (secrets.randbits(32) if self.seed is None else self.seed) % 2**32
        values["ignore_eos"] = self.ignore_eos
        values["n_logprobs"] = n_logprobs
        # OpenAI: -100 bans a token, 100 forces it.
        biases = (self.logit_bias or {}).items()
        values["logit_bias"] = tuple((token, float("-inf") if bias == -100 else bias) for token, bias in biases)
        return GenerationParams(
            sampling=SamplingParams(**values), n=self.n, max_tokens=max_tokens, stop=self.stops(), timeout=self.timeout
        )

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: str | Tokens | list[str] | list[Tokens] = Field(
        examples=["def hello_world():"], description="Text, or tokens, or a list of either."
    )
    logprobs: int | None = Field(None, ge=0, le=20)
    max_tokens: int | None = Field(16, ge=1)


class TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class Message(BaseModel):
    # Templates may use fields that we do not know.
    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1, max_length=64)
    content: str | list[TextPart] | None = None

    def for_template(self) -> dict[str, Any]:
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return (self.model_extra or {}) | {"role": self.role, "content": content or ""}


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(
        min_length=1, examples=[[{"role": "user", "content": "Write a function that adds two numbers."}]]
    )
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def n_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
