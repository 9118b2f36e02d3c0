"""The fields of bodies that generate: those that llama-server's dialect has, too, and those of OpenAI's two endpoints.
Each is OpenAI's unless its description says otherwise.

Other servers' fields for the same thing are known, too: llama-server's, vLLM's and Ollama's. Fields for the choice
of tokens are in `sampling`, for the form of the answer in `form`; the rest is in `unknown_fields`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from pyllmcancel.constraints.limits import TokenLimits
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.requests.params import REPETITION_LIMIT, GenerationParams
from pyllmcancel.server.limits import MAX_FIELD_PATH
from pyllmcancel.server.wire.fields import MAX_MS, GeneratingBody, Name, RequestBody, Sent, TokenId, optional
from pyllmcancel.server.wire.form import FormFields, Gbnf
from pyllmcancel.server.wire.sampling import MAX_INT, NO_EFFECT, OllamaOptions, SamplingFields, Stops, Switch, extra

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.server.config import ServerConfig
    from pyllmcancel.server.state import ServerState

MAX_PREDICTED_PARTS = 1_024


class PredictedText(RequestBody):
    type: Literal["text"] = "text"
    text: str


class Prediction(RequestBody):
    type: Literal["content"]
    content: str | Annotated[list[PredictedText], Field(min_length=1, max_length=MAX_PREDICTED_PARTS, fail_fast=True)]


MAX_ADAPTERS = 1_024


class LoraScale(RequestBody):
    id: int = Field(ge=0, le=MAX_INT, description="Number of an adapter, as `/lora-adapters` lists them.")
    scale: float = Field(0.0, allow_inf_nan=False)


LoraScales = Annotated[list[LoraScale], Field(max_length=MAX_ADAPTERS, fail_fast=True)]


class LoraFields(Sent):
    lora: LoraScales | None = optional(
        "llama-server's: the LoRA adapters that compute this request, and their scales; others have 0. Without it,"
        " the scales are those of `/lora-adapters`.",
        examples=[[{"id": 0, "scale": 1.0}]],
    )


def described_as_list(schema: dict[str, Any]) -> None:
    scales = schema["properties"]["scales"]
    schema.clear()
    schema.update(scales)


class LoraScalesBody(RequestBody):
    """The body of ``POST /lora-adapters``: a list, unlike all others."""

    model_config = ConfigDict(extra="allow", json_schema_extra=described_as_list)

    scales: LoraScales

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, sent: Any) -> Any:
        if not isinstance(sent, list):
            raise ValueError("the body must be a list of objects with id and scale")
        return {"scales": sent}


def pairs(scales: list[LoraScale]) -> tuple[tuple[int, float], ...]:
    return tuple((entry.id, entry.scale) for entry in scales)


class LlamaFields(LoraFields, GeneratingBody):
    stop: Stops = None
    n_indent: int | None = optional(
        "llama-server's: a line with fewer blanks at its beginning ends the answer.", 0, 1000
    )
    t_max_prompt_ms: int | None = optional(
        "llama-server's: time limit for the prompt, after which the answer is empty.", -1, MAX_MS
    )
    t_max_predict_ms: int | None = optional(
        "llama-server's: time limit from the first token, which applies once the answer has a line feed.", -1, MAX_MS
    )
    cache_prompt: bool | None = optional(
        "llama-server's: start from the longest cached prefix of the prompt (the default)."
    )
    draft_max: int | None = optional(
        "llama-server's: limit of drafted tokens in a step, if it is below `--draft-max`; 0: nothing is drafted, and"
        " nothing is taken from an earlier answer.",
        0,
        MAX_INT,
        validation_alias="speculative.n_max",
        serialization_alias="speculative.n_max",
    )
    id_slot: int | None = optional(
        "llama-server's: the slot from whose prefix the request goes on, with `--slot-save-path`; -1: any. Without"
        " that option it has no effect: every slot can use what any other has computed.",
        -1,
        MAX_INT,
    )
    sse_ping_interval: int | None = optional(
        "llama-server's: seconds of silence until a ping; -1: no pings.", -1, MAX_INT
    )
    response_fields: list[Annotated[str, Field(max_length=MAX_FIELD_PATH)]] | None = optional(
        "llama-server's: answer with these fields only, if not in a stream; `a/b` is the field b of a. A chat or a"
        " completion of OpenAI's dialect that has none of them is whole.",
        max_length=128,
        fail_fast=True,
    )
    timings_per_token: bool | None = optional("llama-server's: add timings to every event, not to the last one only.")
    return_progress: bool | None = optional("llama-server's: stream the progress while the prompt is computed.")
    return_tokens: bool | None = optional("llama-server's: add the generated tokens as `tokens`.")
    n_keep: int | None = optional(f"llama-server's. {NO_EFFECT} no context is ever shifted.", -1, MAX_INT)
    n_discard: int | None = optional(f"llama-server's. {NO_EFFECT} no context is ever shifted.", 0, MAX_INT)
    n_cache_reuse: int | None = optional(f"llama-server's. {NO_EFFECT} cells are not moved.", 0, MAX_INT)

    @property
    def most_tokens(self) -> int | None:
        """The limit of an answer's tokens; None if only the context limits them."""
        raise NotImplementedError

    @property
    def only_warms(self) -> bool:
        return self.most_tokens == 0

    def limits(self, config: ServerConfig) -> dict[str, Any]:
        """Return the fields of GenerationParams that are made of these, within the limits of the server."""
        prompt_ms, predict_ms = self.t_max_prompt_ms or 0, self.t_max_predict_ms or 0
        repetition = REPETITION_LIMIT if self.repetition_limit is True else self.repetition_limit
        return {
            "max_tokens": 0 if self.prefetch else config.limited(self.most_tokens),
            "repetition_limit": config.repetition_limit if repetition is None else int(repetition),
            "stop": tuple(text for text in ([self.stop] if isinstance(self.stop, str) else self.stop or ()) if text),
            "timeout": self.timeout,
            "queue_timeout": self.queue_timeout,
            "idle_timeout": self.idle_timeout,
            "reuse_prefix": self.cache_prompt is not False,
            "max_prompt_seconds": prompt_ms / 1e3 if prompt_ms > 0 else None,
            "max_predict_seconds": predict_ms / 1e3 if predict_ms > 0 else None,
            "min_indent": self.n_indent or 0,
            "prompt_progress": bool(self.return_progress) and self.stream,
            "draft_max": self.draft_max,
            "adapters": pairs(self.lora) if self.lora else None,  # in llama-server, an empty list asks for nothing
            "slot": self.id_slot if self.id_slot is not None and self.id_slot >= 0 else None,
        }


def chosen(whole: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values that `paths` name, each under its path. A path without a value is left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            found[path] = value
    return found


MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 1_024
TokenList = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]


class StreamOptions(RequestBody):
    include_usage: Switch = Field(False, description="End with a chunk that has the usage and no choices.")
    include_obfuscation: bool | None = optional(
        f"{NO_EFFECT} padding would hide the lengths of tokens from those who watch the network."
    )


class PromptCacheOptions(RequestBody):
    mode: Literal["implicit"] | None = None
    ttl: str | None = None


class FieldsWithoutEffect(Sent):
    """Fields that are known and have no effect on an answer, each with the reason why ignoring it is correct."""

    metadata: Annotated[dict[str, Any] | None, AfterValidator(lambda _: None)] = optional(
        f"{NO_EFFECT} nothing is stored."
    )
    store: bool | None = optional(f"{NO_EFFECT} nothing is stored.")
    service_tier: str | None = optional(f"{NO_EFFECT} there is one tier.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = optional(
        f"{NO_EFFECT} how long a prefix is kept is up to `--cache-ram` and `--cache-disk`."
    )
    prompt_cache_options: PromptCacheOptions | None = optional(f"{NO_EFFECT} any cached prefix is used anyway.")
    cache_salt: Name | None = extra(f"vLLM's. {NO_EFFECT} cached prefixes are never shared between API keys.")
    request_id: Name | None = extra(f"vLLM's. {NO_EFFECT} `X-Request-Id` names a request.")
    spaces_between_special_tokens: bool | None = extra(
        f"vLLM's. {NO_EFFECT} the text has only the spaces that the model writes."
    )
    include_reasoning: Literal[True] | None = extra(f"{NO_EFFECT} nothing is left out.")
    keep_alive: float | str | None = extra(f"Ollama's. {NO_EFFECT} the model stays loaded.")


class OpenAIBody(SamplingFields, FormFields, FieldsWithoutEffect, LlamaFields):
    """The fields that the two endpoints have in common."""

    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"grammar_lazy": (), "grammar_triggers": ()}

    stream: Switch = Field(False, description="Answer in server-sent events while the text is generated.")
    stream_options: StreamOptions | None = optional("Only allowed with `stream`.")
    prediction: Prediction | None = optional(
        "Text that much of the answer is expected to consist of: the answer is the same, and comes faster.",
        examples=[{"type": "content", "content": "def add(a, b):\n    return a + b\n"}],
    )
    n: int | None = optional("Number of choices for each prompt [1].", 1, MAX_CHOICES)
    n_cmpl: int | None = extra("llama-server's name for `n`.", 1, MAX_CHOICES)
    stop: Stops = optional("Texts that end the answer, without being part of it.", examples=[["\n\n"]])
    n_predict: int | None = extra(
        "llama-server's name for `max_tokens`, if that is not given; -1: no limit.", -1, MAX_INT
    )
    n_probs: int | None = extra(
        "llama-server's: report logprobs, with this number of the likeliest tokens.", 0, MAX_LOGPROBS
    )
    verbose: bool | None = extra(
        "Add `__verbose` to the answer, and to the chunk that ends a choice: the prompt as the model reads it, and"
        " the raw text before it is parsed; of several choices, the first one's."
    )
    min_tokens: int | None = extra("vLLM's: minimum of tokens before the answer may end by itself.", 0, MAX_INT)
    stop_token_ids: TokenList | None = extra("vLLM's: tokens that end the answer.")
    allowed_token_ids: TokenList | None = extra("vLLM's: the only tokens that the answer may have.", min_length=1)
    skip_special_tokens: bool | None = extra("vLLM's. false: control tokens are in the text.")
    include_stop_str_in_output: bool | None = extra(
        "vLLM's: the text includes the stop string or stop token that ended it."
    )
    truncate_prompt_tokens: int | None = extra(
        "vLLM's: keep only this number of the prompt's last tokens; -1: all that fit.", -1, MAX_INT
    )
    options: OllamaOptions | None = extra(
        "Ollama's: samplers and limits, which apply if the body has no field of the same meaning."
    )
    num_ctx: int | None = extra("Ollama's. Without effect; reported if the context is smaller.", 0, MAX_INT)

    @model_validator(mode="after")
    def _with_other_names(self) -> OpenAIBody:
        others: dict[str, Any] = {"n": self.n_cmpl}
        if self.options is not None:
            others |= {name: getattr(self.options, name) for name in (*SamplingFields.model_fields, "stop")}
            others["n_predict"] = None if self.options.num_predict is None else max(self.options.num_predict, -1)
        for name, value in others.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

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
        content = "" if self.prediction is None or self.draft_max == 0 else self.prediction.content
        return content if isinstance(content, str) else "".join(part.text for part in content)

    @property
    def limit_field(self) -> str | None:
        """The field that limits tokens; None if there is none."""
        return "min_tokens" if self.min_tokens else None if self.allowed_token_ids is None else "allowed_token_ids"

    def check(self, engine: Engine) -> None:
        options = None if self.options is None else self.options.num_ctx
        for name, given in (("num_ctx", self.num_ctx), ("options.num_ctx", options)):
            if given is not None and given > engine.n_ctx:
                self.ignore(name)
        if self.stream_options is not None and self.stream_options.include_usage and not self.stream:
            raise InvalidRequestError("stream_options are for streams only", "stream_options")
        if isinstance(self.form, Gbnf) and self.limit_field:
            raise InvalidRequestError("a grammar cannot be combined with other limits on tokens", self.limit_field)
        if self.limit_field and "infill" in (self.samplers or ()):
            raise InvalidRequestError("the sampler infill cannot be combined with limits on tokens", self.limit_field)

    def generation_params(
        self, state: ServerState, constraint: ConstraintFactory | None, prediction: tuple[int, ...], **more: Any
    ) -> GenerationParams:
        """Return the parameters of generation, with the server's defaults for those that the client leaves open, and
        with `more`. Limits on tokens are added to the constraint.
        """
        stop_tokens = frozenset(self.stop_token_ids or ())
        if self.limit_field:
            n_vocab = state.engine.model.n_vocab
            allowed = None if self.allowed_token_ids is None else frozenset(self.allowed_token_ids)
            if allowed is not None and max(allowed) >= n_vocab:
                message = f"token {max(allowed)} is not in the vocabulary of {n_vocab:,}"
                raise InvalidRequestError(message, "allowed_token_ids")
            ending = stop_tokens.union(state.eog_tokens)
            constraint = TokenLimits(n_vocab, allowed, ending, self.min_tokens or 0, constraint)
        n_logprobs = self.most_logprobs
        if n_logprobs is None and self.n_generated > (self.n or 1):
            n_logprobs = 0  # comparing answers needs their logprobs, even if the client does not get them
        grammar = self.form.text if isinstance(self.form, Gbnf) else ""
        given = self.given() | {"grammar": grammar, "n_logprobs": n_logprobs}
        return GenerationParams(
            sampling=replace(state.config.request_defaults(), **given),
            n=self.n_generated,
            constraint=constraint,
            prediction=prediction,
            all_visible=self.skip_special_tokens is False,
            stop_tokens=stop_tokens,
            stop_shown=bool(self.include_stop_str_in_output),
            **self.limits(state.config),
            **more,
        )
