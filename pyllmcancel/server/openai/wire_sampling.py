"""The fields that say how the next token is chosen: OpenAI's, and llama.cpp's under llama-server's names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator

from pyllmcancel.sampling import SAMPLERS
from pyllmcancel.server.limits import MAX_BIASES
from pyllmcancel.server.llama.wire import SAMPLER_NAMES

# JSON spells the keys of an object as texts.
BiasedToken = Annotated[int, Field(ge=0, lt=2**31)]
MOST = 2**31 - 1
NOT_OPENAI = "Not in OpenAI's API."

# Fields of ours by fields of the wire, where the two have different names.
RENAMED = {"repeat_last_n": "penalty_last_n", "post_sampling_probs": "logprobs_after_sampling"}


def extra(meaning: str) -> str:
    return f"{NOT_OPENAI} {meaning}"


class SamplingFields(BaseModel):
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

    top_k: int | None = Field(None, ge=-1, le=MOST, description=extra("Keep the k likeliest tokens; 0 keeps all."))
    min_p: float | None = Field(
        None, ge=0, le=1, description=extra("Drop what is less likely than that times the best.")
    )
    typical_p: float | None = Field(None, ge=0, le=1, description=extra("Locally typical sampling; 1: off."))
    top_n_sigma: float | None = Field(
        None, ge=-1, le=1000, description=extra("Keep logits within so many deviations of the best; negative: off.")
    )
    min_keep: int | None = Field(None, ge=0, le=MOST, description=extra("Truncation leaves at least so many tokens."))
    repeat_penalty: float | None = Field(None, ge=0.01, le=100, description=extra("Divides logits of recent tokens."))
    repeat_last_n: int | None = Field(
        None, ge=-1, le=1_000_000, description=extra("Tokens that penalties look back on; -1: the whole context.")
    )
    dynatemp_range: float | None = Field(
        None, ge=0, le=100, description=extra("The temperature moves by so much, up or down, with the entropy.")
    )
    dynatemp_exponent: float | None = Field(None, ge=0, le=100, description=extra("How steeply it does."))
    xtc_probability: float | None = Field(
        None, ge=0, le=1, description=extra("With that probability, drop all top choices but one.")
    )
    xtc_threshold: float | None = Field(None, ge=0, le=1, description=extra("How likely a top choice is, at least."))
    dry_multiplier: float | None = Field(
        None, ge=0, le=100, description=extra("Penalty on repeating a sequence; 0: off.")
    )
    dry_base: float | None = Field(None, ge=0, le=100, description=extra("How it grows with the sequence."))
    dry_allowed_length: int | None = Field(None, ge=0, le=1_000_000, description=extra("Up to which there is none."))
    dry_penalty_last_n: int | None = Field(
        None, ge=-1, le=1_000_000, description=extra("Tokens it looks back on; -1: the whole context.")
    )
    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description=extra("No sequence goes on past these.")
    )
    mirostat: int | None = Field(None, ge=0, le=2, description=extra("1 or 2: Mirostat instead of truncation."))
    mirostat_tau: float | None = Field(None, ge=0, le=1000, description=extra("Its target entropy."))
    mirostat_eta: float | None = Field(None, ge=0, le=1000, description=extra("Its learning rate."))
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
        found: dict[str, Any] = {}
        for wire in SamplingFields.model_fields:
            value = getattr(self, wire)
            if value is not None:
                found[RENAMED.get(wire, wire)] = tuple(value) if isinstance(value, list) else value
        if self.seed is not None:
            found["seed"] = self.seed % 2**32
        # OpenAI: -100 bans a token.
        biases = (self.logit_bias or {}).items()
        found["logit_bias"] = tuple((token, float("-inf") if bias == -100 else bias) for token, bias in biases)
        return found
