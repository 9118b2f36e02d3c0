"""The fields of OpenAI's two endpoints that generate; each is OpenAI's unless its description says otherwise.

Those that other servers have for the same thing are taken, too: llama-server's, vLLM's and Ollama's. How tokens are
chosen is in `sampling`, what the answer must look like in `form`, what has no effect in `accepted`; of
the rest see `unknown_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from pyllmcancel.constraints.limits import TokenLimits
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.limits import MAX_FIELD_PATH
from pyllmcancel.server.wire.accepted import AcceptedFields
from pyllmcancel.server.wire.fields import MAX_MS, GeneratingBody, RequestBody, TokenId, seconds, stop_strings
from pyllmcancel.server.wire.form import FormFields, Gbnf
from pyllmcancel.server.wire.lora import LoraScale, check_lora
from pyllmcancel.server.wire.sampling import NO_EFFECT, OllamaOptions, SamplingFields, Stops, Switch, extra
from pyllmcancel.server.wire.sampling_fields import MOST

if TYPE_CHECKING:
    from pyllmcancel.constraints.bounded import NamedRule, NamedSchema
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.sampling import SamplingParams

MAX_CHOICES = 128
MOST_LOGPROBS = 20
MOST_STOP_TOKENS = 1_024
TokenList = Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)]


class StreamOptions(RequestBody):
    include_usage: Switch = Field(False, description="End with a chunk that has the usage and no choices.")
    include_obfuscation: bool | None = Field(
        None, description=f"{NO_EFFECT} padding hides the lengths of tokens from who can watch the network."
    )


class GenerationBody(SamplingFields, FormFields, AcceptedFields, GeneratingBody):
    """The fields that the two endpoints have in common."""

    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"grammar_lazy": (), "grammar_triggers": ()}

    stream: Switch = Field(False, description="Answer in server-sent events, as the text comes.")
    stream_options: StreamOptions | None = Field(None, description="Only together with `stream`.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices for each prompt; 1 if left out.")
    n_cmpl: int | None = Field(None, ge=1, le=MAX_CHOICES, description=extra("llama-server's name for `n`."))
    stop: Stops = Field(None, description="Texts that end the answer, and are not part of it.", examples=[["\n\n"]])
    n_predict: int | None = Field(
        None,
        ge=-1,
        le=MOST,
        description=extra("llama-server's name for `max_tokens`, where that is not given; -1: no limit."),
    )
    n_indent: int | None = Field(
        None, ge=0, le=1000, description=extra("A line with fewer blanks before it ends the answer.")
    )
    n_probs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description=extra("llama-server's: logprobs, with so many of the likeliest.")
    )
    t_max_prompt_ms: int | None = Field(
        None, ge=-1, le=MAX_MS, description=extra("Most time for the prompt; then the answer is empty.")
    )
    t_max_predict_ms: int | None = Field(
        None, ge=-1, le=MAX_MS, description=extra("Most time from the first token on, once there is a line feed.")
    )
    cache_prompt: bool | None = Field(None, description=extra("Start from what is known of the prompt (the default)."))
    lora: list[LoraScale] | None = Field(
        None, description=extra("Accepted if it says what is in force: adapters are loaded with their scales.")
    )
    sse_ping_interval: int | None = Field(
        None, ge=-1, le=MOST, description=extra("Seconds of silence until a comment; -1: none.")
    )
    response_fields: list[Annotated[str, Field(max_length=MAX_FIELD_PATH)]] | None = Field(
        None,
        max_length=128,
        fail_fast=True,
        description=extra("Only these fields of an answer in one piece, if it has any of them; `a/b` is the b of a."),
    )
    timings_per_token: bool | None = Field(None, description=extra("Timings in every chunk, not in the last only."))
    return_progress: bool | None = Field(
        None, description=extra("While the prompt is computed, stream how far that is.")
    )
    return_tokens: bool | None = Field(None, description=extra("Have `tokens` in each choice."))
    verbose: bool | None = Field(
        None,
        description=extra(
            "Have `__verbose` in the answer, and in the chunk that ends a choice: the prompt as the model reads it, and"
            " the text as it comes, before anything is made of it; of several choices, the first one's."
        ),
    )
    min_tokens: int | None = Field(
        None, ge=0, le=MOST, description=extra("vLLM's: so many tokens before the answer may end by itself.")
    )
    stop_token_ids: TokenList | None = Field(None, description=extra("vLLM's: tokens that end the answer."))
    allowed_token_ids: TokenList | None = Field(
        None, min_length=1, description=extra("vLLM's: the only tokens that the answer may have.")
    )
    skip_special_tokens: bool | None = Field(None, description=extra("vLLM's. false: control tokens are in the text."))
    include_stop_str_in_output: bool | None = Field(
        None, description=extra("vLLM's: the text ends with what has ended it, of `stop` and `stop_token_ids`.")
    )
    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, le=MOST, description=extra("vLLM's: only the last so many tokens of the prompt; -1: all that fit.")
    )
    options: OllamaOptions | None = Field(
        None, description=extra("Ollama's: samplers and limits, where the body has none of that meaning.")
    )
    num_ctx: int | None = Field(
        None, ge=0, le=MOST, description=extra("Ollama's. Without effect; told if the context is smaller.")
    )

    @model_validator(mode="after")
    def _with_other_names(self) -> GenerationBody:
        found: dict[str, Any] = {} if self.options is None else self.options.for_body()
        for name, value in ({"n": self.n_cmpl} | found).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def ping_interval(self) -> float | None:
        """Seconds of silence, 0 for no pings; None: as the server says."""
        return None if self.sse_ping_interval is None else max(0, self.sse_ping_interval)

    def heed(self, engine: Engine) -> None:
        check_lora(self.lora, engine.config)
        options = None if self.options is None else self.options.num_ctx
        for name, given in (("num_ctx", self.num_ctx), ("options.num_ctx", options)):
            if given is not None and given > engine.n_ctx:
                self.ignore(name)

    def own_name(self, param: str | None) -> str | None:
        form = self.answer_form() if param == "grammar" else None
        return super().own_name(param) if form is None else form.param

    def answer_schema(self, *, calls: bool = False) -> NamedSchema | NamedRule | None:
        """The form, if it is not a grammar for the sampler."""
        form = self.answer_form(calls=calls)
        return None if isinstance(form, Gbnf) else form

    def check(self) -> None:
        """Raise InvalidRequestError for fields that contradict each other."""
        if self.includes_usage and not self.stream:
            raise InvalidRequestError("stream_options are for streams only", "stream_options")
        if self.limits_tokens and isinstance(self.answer_form(), Gbnf):
            raise InvalidRequestError("a grammar allows no other limits on tokens", self.limit_field)
        if self.limits_tokens and "infill" in (self.samplers or ()):
            raise InvalidRequestError("the sampler infill allows no limits on tokens", self.limit_field)

    def sampling(self, defaults: SamplingParams, n_logprobs: int | None) -> SamplingParams:
        """How to choose tokens; `defaults` for what the client leaves open."""
        form = self.answer_form()
        grammar = form.text if isinstance(form, Gbnf) else ""
        return replace(defaults, **self.given(), grammar=grammar, n_logprobs=n_logprobs)

    def limits(self) -> dict[str, Any]:
        """Fields of GenerationParams that the two endpoints name alike."""
        return {
            "stop": stop_strings(self.stop),
            "timeout": self.timeout,
            "reuse_prefix": self.cache_prompt is not False,
            "max_prompt_seconds": seconds(self.t_max_prompt_ms),
            "max_predict_seconds": seconds(self.t_max_predict_ms),
            "min_indent": self.n_indent or 0,
            "prompt_progress": bool(self.return_progress) and self.stream,
            "all_visible": self.skip_special_tokens is False,
            "stop_tokens": frozenset(self.stop_token_ids or ()),
            "stop_shown": bool(self.include_stop_str_in_output),
        }

    @property
    def limits_tokens(self) -> bool:
        return bool(self.min_tokens) or self.allowed_token_ids is not None

    @property
    def limit_field(self) -> str:
        """The field that limits tokens."""
        return "min_tokens" if self.min_tokens else "allowed_token_ids"

    def token_limits(
        self, n_vocab: int, eog_tokens: Iterable[int], form: ConstraintFactory | None
    ) -> ConstraintFactory | None:
        allowed = None if self.allowed_token_ids is None else frozenset(self.allowed_token_ids)
        if allowed is not None and max(allowed) >= n_vocab:
            message = f"token {max(allowed)} is not in the vocabulary of {n_vocab:,}"
            raise InvalidRequestError(message, "allowed_token_ids")
        ending = frozenset(eog_tokens) | frozenset(self.stop_token_ids or ())
        return TokenLimits(n_vocab, allowed, ending, self.min_tokens or 0, form)
