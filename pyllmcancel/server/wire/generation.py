"""The fields of OpenAI's two endpoints that generate; each is OpenAI's unless its description says otherwise.

Other servers' fields for the same thing are accepted, too: llama-server's, vLLM's and Ollama's. Fields for the choice
of tokens are in `sampling`, for the form of the answer in `form`; the rest is in `unknown_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from pyllmcancel.constraints.limits import TokenLimits
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.server.wire.fields import Name, RequestBody, Sent, TokenId, between
from pyllmcancel.server.wire.form import FormFields, Gbnf
from pyllmcancel.server.wire.llama_fields import DraftFields, LlamaFields
from pyllmcancel.server.wire.sampling import MAX_INT, NO_EFFECT, OllamaOptions, SamplingFields, Stops, Switch, extra

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.server.config import ServerConfig

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 1_024
TokenList = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]


class StreamOptions(RequestBody):
    include_usage: Switch = Field(False, description="End with a chunk that has the usage and no choices.")
    include_obfuscation: bool | None = Field(
        None, description=f"{NO_EFFECT} padding would hide the lengths of tokens from those who watch the network."
    )


class PromptCacheOptions(RequestBody):
    mode: Literal["implicit"] | None = None
    ttl: str | None = None


class AcceptedFields(Sent):
    """Fields that are known and have no effect on an answer, each with the reason why ignoring it is correct."""

    metadata: Annotated[dict[str, Any] | None, AfterValidator(lambda _: None)] = Field(
        None, description=f"{NO_EFFECT} nothing is stored."
    )
    store: bool | None = Field(None, description=f"{NO_EFFECT} nothing is stored.")
    service_tier: str | None = Field(None, description=f"{NO_EFFECT} there is one tier.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description=f"{NO_EFFECT} how long a prefix is kept is up to `--cache-ram` and `--cache-disk`."
    )
    prompt_cache_options: PromptCacheOptions | None = Field(
        None, description=f"{NO_EFFECT} any cached prefix is used anyway."
    )
    n_keep: int | None = Field(None, ge=-1, le=MAX_INT, description=extra(f"{NO_EFFECT} no context is ever shifted."))
    n_discard: int | None = Field(None, ge=0, le=MAX_INT, description=extra(f"{NO_EFFECT} no context is ever shifted."))
    n_cache_reuse: int | None = Field(None, ge=0, le=MAX_INT, description=extra(f"{NO_EFFECT} cells are not moved."))
    cache_salt: Name | None = Field(
        None, description=extra(f"vLLM's. {NO_EFFECT} cached prefixes are never shared between API keys.")
    )
    request_id: Name | None = Field(None, description=extra(f"vLLM's. {NO_EFFECT} `X-Request-Id` names a request."))
    spaces_between_special_tokens: bool | None = Field(
        None, description=extra(f"vLLM's. {NO_EFFECT} the text has only the spaces that the model writes.")
    )
    include_reasoning: Literal[True] | None = Field(None, description=extra(f"{NO_EFFECT} nothing is left out."))
    keep_alive: float | str | None = Field(None, description=extra(f"Ollama's. {NO_EFFECT} the model stays loaded."))


class OpenAIBody(SamplingFields, FormFields, DraftFields, AcceptedFields, LlamaFields):
    """The fields that the two endpoints have in common."""

    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"grammar_lazy": (), "grammar_triggers": ()}

    stream: Switch = Field(False, description="Answer in server-sent events while the text is generated.")
    stream_options: StreamOptions | None = Field(None, description="Only allowed with `stream`.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Number of choices for each prompt [1].")
    n_cmpl: int | None = Field(None, ge=1, le=MAX_CHOICES, description=extra("llama-server's name for `n`."))
    stop: Stops = Field(None, description="Texts that end the answer, without being part of it.", examples=[["\n\n"]])
    n_predict: int | None = between(
        -1, MAX_INT, extra("llama-server's name for `max_tokens`, if that is not given; -1: no limit.")
    )
    n_probs: int | None = between(
        0, MAX_LOGPROBS, extra("llama-server's: report logprobs, with this number of the likeliest tokens.")
    )
    verbose: bool | None = Field(
        None,
        description=extra(
            "Add `__verbose` to the answer, and to the chunk that ends a choice: the prompt as the model reads it, and"
            " the raw text before it is parsed; of several choices, the first one's."
        ),
    )
    min_tokens: int | None = between(
        0, MAX_INT, extra("vLLM's: minimum of tokens before the answer may end by itself.")
    )
    stop_token_ids: TokenList | None = Field(None, description=extra("vLLM's: tokens that end the answer."))
    allowed_token_ids: TokenList | None = Field(
        None, min_length=1, description=extra("vLLM's: the only tokens that the answer may have.")
    )
    skip_special_tokens: bool | None = Field(None, description=extra("vLLM's. false: control tokens are in the text."))
    include_stop_str_in_output: bool | None = Field(
        None, description=extra("vLLM's: the text includes the stop string or stop token that ended it.")
    )
    truncate_prompt_tokens: int | None = between(
        -1, MAX_INT, extra("vLLM's: keep only this number of the prompt's last tokens; -1: all that fit.")
    )
    options: OllamaOptions | None = Field(
        None,
        description=extra("Ollama's: samplers and limits, which apply if the body has no field of the same meaning."),
    )
    num_ctx: int | None = between(0, MAX_INT, extra("Ollama's. Without effect; reported if the context is smaller."))

    @model_validator(mode="after")
    def _with_other_names(self) -> OpenAIBody:
        found: dict[str, Any] = {} if self.options is None else self.options.for_body()
        for name, value in ({"n": self.n_cmpl} | found).items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def n_generated(self) -> int:
        """The number of choices that are generated for each prompt."""
        return self.n or 1

    @property
    def most_logprobs(self) -> int | None:
        """The number of alternatives beside each token; None: no logprobs."""
        raise NotImplementedError

    @property
    def predicted(self) -> str:
        """The predicted text; empty if there is none, or if nothing is to be drafted."""
        return "" if self.prediction is None or self.draft_max == 0 else self.prediction.text

    @property
    def engine_names(self) -> dict[str, str]:
        return {} if self.form is None else {"grammar": self.form.param}

    def check(self, engine: Engine) -> None:
        options = None if self.options is None else self.options.num_ctx
        for name, given in (("num_ctx", self.num_ctx), ("options.num_ctx", options)):
            if given is not None and given > engine.n_ctx:
                self.ignore(name)
        if self.includes_usage and not self.stream:
            raise InvalidRequestError("stream_options are for streams only", "stream_options")
        if isinstance(self.form, Gbnf) and self.limits_tokens:
            raise InvalidRequestError("a grammar cannot be combined with other limits on tokens", self.limit_field)
        if self.limits_tokens and "infill" in (self.samplers or ()):
            raise InvalidRequestError("the sampler infill cannot be combined with limits on tokens", self.limit_field)

    def generation_params(
        self, config: ServerConfig, constraint: ConstraintFactory | None, prediction: tuple[int, ...]
    ) -> GenerationParams:
        """Return the parameters of generation, with the server's defaults for those that the client leaves open."""
        grammar = self.form.text if isinstance(self.form, Gbnf) else ""
        given = self.given() | {"grammar": grammar, "n_logprobs": self.most_logprobs}
        return GenerationParams(
            sampling=replace(config.request_defaults(), **given),
            n=self.n_generated,
            constraint=constraint,
            prediction=prediction,
            **self.limits(config),
        )

    def limits(self, config: ServerConfig) -> dict[str, Any]:
        return super().limits(config) | {
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
        """Return `form` with the limits on tokens, which are of a vocabulary of `n_vocab`."""
        if not self.limits_tokens:
            return form
        allowed = None if self.allowed_token_ids is None else frozenset(self.allowed_token_ids)
        if allowed is not None and max(allowed) >= n_vocab:
            message = f"token {max(allowed)} is not in the vocabulary of {n_vocab:,}"
            raise InvalidRequestError(message, "allowed_token_ids")
        ending = frozenset(eog_tokens) | frozenset(self.stop_token_ids or ())
        return TokenLimits(n_vocab, allowed, ending, self.min_tokens or 0, form)
