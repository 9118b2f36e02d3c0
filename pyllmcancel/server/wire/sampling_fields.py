"""The fields of llama.cpp's samplers, which both dialects have under llama-server's names."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from pyllmcancel.sampling import SAMPLER_LETTERS, SAMPLERS, SamplingParams
from pyllmcancel.server.wire.fields import RENAMED, SAMPLER_NAMES, Sent

MAX_INT = 2**31 - 1


def between(least: float, most: float, meaning: str) -> Any:
    return Field(None, ge=least, le=most, description=f"llama.cpp's: {meaning}")


class SamplerFields(Sent):
    """Fields for the samplers. A field that is left out has the value the server was started with."""

    top_p: float | None = Field(
        None, ge=0, le=1, description="Choose among the likeliest tokens that make up this probability."
    )
    seed: int | None = Field(
        None,
        ge=-(2**63),
        lt=2**64,
        description="The same seed gives the same text; -1 or no seed draws a random one.",
        examples=[7],
    )
    samplers: Annotated[list[str], Field(max_length=64)] | Annotated[str, Field(max_length=64)] | None = Field(
        None,
        description="llama.cpp's: samplers to apply, in their order: names, or a text of their letters.",
        examples=[list(SAMPLERS)],
    )
    ignore_eos: bool | None = Field(None, description="llama.cpp's: generate past the model's end of the answer.")
    post_sampling_probs: bool | None = Field(
        None,
        description="llama-server's: report logprobs after truncation and temperature, instead of the model's own.",
    )
    top_k: int | None = between(-1, MAX_INT, "keep the k likeliest tokens; 0 or less keeps all.")
    min_p: float | None = between(0, 1, "drop tokens that are less likely than this times the likeliest.")
    typical_p: float | None = between(0, 1, "locally typical sampling; 1: off.")
    typ_p: float | None = between(0, 1, "as `typical_p`, if that is not given.")
    top_n_sigma: float | None = between(
        -1, 1000, "keep logits within this number of standard deviations of the best; 0 or less: off."
    )
    min_keep: int | None = between(0, MAX_INT, "minimum of tokens that truncation leaves.")
    repeat_penalty: float | None = between(0.01, 100, "divides logits of recent tokens.")
    repeat_last_n: int | None = between(
        -1, 1_000_000, "number of last tokens that the penalties count; -1: the whole context."
    )
    dynatemp_range: float | None = between(0, 100, "range around the temperature, which then depends on entropy.")
    dynatemp_exponent: float | None = between(0, 100, "exponent of the temperature's dependence on entropy.")
    xtc_probability: float | None = between(0, 1, "probability of dropping all top choices but the last.")
    xtc_threshold: float | None = between(0, 1, "minimum probability of a top choice.")
    dry_multiplier: float | None = between(0, 100, "penalty on repeating a sequence; 0: off.")
    dry_base: float | None = between(0, 100, "each further token of the sequence multiplies the penalty by this.")
    dry_allowed_length: int | None = between(0, 1_000_000, "a repeated sequence up to this length has no penalty.")
    dry_penalty_last_n: int | None = between(
        -1, 1_000_000, "number of last tokens that DRY looks at; -1: the whole context."
    )
    mirostat: int | None = between(0, 2, "1 or 2: Mirostat instead of truncation.")
    mirostat_tau: float | None = between(0, 1000, "Mirostat's target entropy.")
    mirostat_eta: float | None = between(0, 1000, "Mirostat's learning rate.")
    backend_sampling: bool | None = Field(None, description="llama.cpp's: without effect on the answer.")
    adaptive_target: float | None = Field(None, le=1, description="llama.cpp's: not supported, unless negative: off.")
    adaptive_decay: float | None = Field(None, ge=0, le=0.99, description="llama.cpp's: without effect.")

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
