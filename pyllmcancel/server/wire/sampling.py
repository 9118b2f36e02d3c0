"""The fields for the choice of tokens: those of llama.cpp's samplers, and those of OpenAI's dialect."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator

from pyllmcancel.sampling import SAMPLER_LETTERS, SAMPLERS, SamplingParams
from pyllmcancel.server.limits import MAX_BIASES
from pyllmcancel.server.wire.fields import RENAMED, SAMPLER_NAMES, RequestBody, Sent, Stop, optional

MAX_INT = 2**31 - 1


def sampler(least: float, most: float, meaning: str) -> Any:
    return optional(f"llama.cpp's: {meaning}", least, most)


class SamplerFields(Sent):
    """Fields for the samplers. A field that is left out has the value the server was started with."""

    top_p: float | None = optional("Choose among the likeliest tokens that make up this probability.", 0, 1)
    seed: int | None = optional(
        "The same seed gives the same text; -1 or no seed draws a random one.", -(2**63), lt=2**64, examples=[7]
    )
    samplers: Annotated[list[str], Field(max_length=64)] | Annotated[str, Field(max_length=64)] | None = optional(
        "llama.cpp's: samplers to apply, in their order: names, or a text of their letters.", examples=[list(SAMPLERS)]
    )
    ignore_eos: bool | None = optional("llama.cpp's: generate past the model's end of the answer.")
    post_sampling_probs: bool | None = optional(
        "llama-server's: report logprobs after truncation and temperature, instead of the model's own."
    )
    top_k: int | None = sampler(-1, MAX_INT, "keep the k likeliest tokens; 0 or less keeps all.")
    min_p: float | None = sampler(0, 1, "drop tokens that are less likely than this times the likeliest.")
    typical_p: float | None = sampler(0, 1, "locally typical sampling; 1: off.")
    typ_p: float | None = sampler(0, 1, "as `typical_p`, if that is not given.")
    top_n_sigma: float | None = sampler(
        -1, 1000, "keep logits within this number of standard deviations of the best; 0 or less: off."
    )
    min_keep: int | None = sampler(0, MAX_INT, "minimum of tokens that truncation leaves.")
    repeat_penalty: float | None = sampler(0.01, 100, "divides logits of recent tokens.")
    repeat_last_n: int | None = sampler(
        -1, 1_000_000, "number of last tokens that the penalties count; -1: the whole context."
    )
    dynatemp_range: float | None = sampler(0, 100, "range around the temperature, which then depends on entropy.")
    dynatemp_exponent: float | None = sampler(0, 100, "exponent of the temperature's dependence on entropy.")
    xtc_probability: float | None = sampler(0, 1, "probability of dropping all top choices but the last.")
    xtc_threshold: float | None = sampler(0, 1, "minimum probability of a top choice.")
    dry_multiplier: float | None = sampler(0, 100, "penalty on repeating a sequence; 0: off.")
    dry_base: float | None = sampler(0, 100, "each further token of the sequence multiplies the penalty by this.")
    dry_allowed_length: int | None = sampler(0, 1_000_000, "a repeated sequence up to this length has no penalty.")
    dry_penalty_last_n: int | None = sampler(
        -1, 1_000_000, "number of last tokens that DRY looks at; -1: the whole context."
    )
    mirostat: int | None = sampler(0, 2, "1 or 2: Mirostat instead of truncation.")
    mirostat_tau: float | None = sampler(0, 1000, "Mirostat's target entropy.")
    mirostat_eta: float | None = sampler(0, 1000, "Mirostat's learning rate.")
    backend_sampling: bool | None = optional("llama.cpp's: without effect on the answer.")
    adaptive_target: float | None = optional("llama.cpp's: not supported, unless negative: off.", most=1)
    adaptive_decay: float | None = optional("llama.cpp's: without effect.", 0, 0.99)

    @field_validator("adaptive_target")
    @classmethod
    def _not_adaptive(cls, target: float | None) -> float | None:
        if target is not None and target >= 0:
            raise ValueError("the adaptive sampler is not supported")
        return target

    @field_validator("samplers")
    @classmethod
    def _known_samplers(cls, given: list[str] | str | None) -> list[str] | None:
        """Return samplers by our names; ValueError for unknown ones. A text has one letter for each."""
        if given is None:
            return None
        table = SAMPLER_LETTERS if isinstance(given, str) else SAMPLER_NAMES
        unknown = [name for name in given if name.lower() not in table]
        if unknown:
            raise ValueError(f"unknown samplers: {', '.join(unknown)}")
        return [table[name.lower()] for name in given]

    def given(self) -> dict[str, Any]:
        """Return fields of SamplingParams that have no more than another name here, as far as the client set them."""
        values = {RENAMED.get(name, name): getattr(self, name) for name in type(self).model_fields}
        found = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in SamplingParams.__slots__ and name not in ("logit_bias", "grammar") and value is not None
        }
        return found if self.typ_p is None else {"typical_p": self.typ_p} | found


# Keys of a JSON object are texts.
BiasedToken = Annotated[int, Field(ge=0, lt=2**31)]
MAX_STOPS = 64
NO_EFFECT = "Without effect:"

# OpenAI's schema allows null for these, which means false.
Switch = Annotated[bool, WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "null"}]})]
Stops = Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None


def extra(meaning: str, *limits: float, **more: Any) -> Any:
    """Describe an optional field that OpenAI's API lacks."""
    return optional(f"Not in OpenAI's API. {meaning}", *limits, **more)


def _as_object(biases: Any) -> Any:
    """Convert llama-server's list of pairs, in which false bans a token, to OpenAI's object."""
    if not isinstance(biases, list):
        return biases
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in biases):
        raise ValueError("must be an object, or a list of pairs of a token's number and a bias")
    return {str(token): -100 if bias is False else bias for token, bias in biases}


class SamplingFields(SamplerFields):
    """Fields for the choice of tokens. A field that is null or left out has the value the server was started with."""

    temperature: float | None = optional("0 takes the likeliest token.", 0, 100)
    frequency_penalty: float | None = optional("Penalty for each time that a token has occurred.", -2, 2)
    presence_penalty: float | None = optional("Penalty for tokens that have occurred.", -2, 2)
    logit_bias: Annotated[
        dict[BiasedToken, Annotated[float, Field(ge=-100, le=100)]] | None, BeforeValidator(_as_object)
    ] = optional("Added to the logits of tokens, by id; -100 bans one.", max_length=MAX_BIASES, examples=[{"12": -100}])

    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = extra(
        "Texts at which DRY's repeated sequences end."
    )
    repetition_penalty: float | None = extra(
        "vLLM's: `repeat_penalty` over prompt and answer, if that is not given.", most=100, gt=0
    )

    def given(self) -> dict[str, Any]:
        found = super().given()
        if self.repetition_penalty is not None and self.repeat_penalty is None:
            found["repeat_penalty"] = max(self.repetition_penalty, 0.01)
            found.setdefault("penalty_last_n", -1)
        # In OpenAI's API -100 bans a token.
        biases = (self.logit_bias or {}).items()
        found["logit_bias"] = tuple((token, float("-inf") if bias == -100 else bias) for token, bias in biases)
        return found


class OllamaOptions(SamplingFields, RequestBody):
    """Ollama's `options`: each one counts if the body has no field of the same meaning itself."""

    num_predict: int | None = optional("As `n_predict`; negative: no limit.", -2, MAX_INT)
    num_ctx: int | None = optional("Without effect; reported if the context is smaller.", 0, MAX_INT)
    num_keep: int | None = optional("Without effect: no context is ever shifted.", -1, MAX_INT)
    stop: Stops = None
