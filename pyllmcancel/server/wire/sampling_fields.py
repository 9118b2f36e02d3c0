"""The fields of llama.cpp's samplers, which both dialects have under llama-server's names."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from pyllmcancel.sampling import SAMPLER_LETTERS
from pyllmcancel.server.wire.fields import SAMPLER_NAMES, Sent

MOST = 2**31 - 1


def between(least: float, most: float, meaning: str) -> Any:
    return Field(None, ge=least, le=most, description=f"llama.cpp's: {meaning}")


def known_samplers(given: list[str] | str | None) -> list[str] | None:
    """By our names; ValueError for those that there are not. A text has one letter for each."""
    if given is None:
        return None
    table = SAMPLER_LETTERS if isinstance(given, str) else SAMPLER_NAMES
    unknown = [name for name in given if name.lower() not in table]
    if unknown:
        raise ValueError(f"unknown samplers: {', '.join(unknown)}")
    return [table[name.lower()] for name in given]


class SamplerFields(Sent):
    """Fields for the samplers. A field that is left out has the value the server was started with."""

    top_k: int | None = between(-1, MOST, "keep the k likeliest tokens; 0 or less keeps all.")
    min_p: float | None = between(0, 1, "drop what is less likely than that times the best.")
    typical_p: float | None = between(0, 1, "locally typical sampling; 1: off.")
    typ_p: float | None = between(0, 1, "as `typical_p`, where that is not given.")
    top_n_sigma: float | None = between(-1, 1000, "keep logits within so many deviations of the best; 0 or less: off.")
    min_keep: int | None = between(0, MOST, "truncation leaves at least so many tokens.")
    repeat_penalty: float | None = between(0.01, 100, "divides logits of recent tokens.")
    repeat_last_n: int | None = between(-1, 1_000_000, "tokens that penalties look back on; -1: the whole context.")
    dynatemp_range: float | None = between(0, 100, "the temperature moves by so much, up or down, with the entropy.")
    dynatemp_exponent: float | None = between(0, 100, "how steeply the temperature moves with the entropy.")
    xtc_probability: float | None = between(0, 1, "with that probability, drop all top choices but one.")
    xtc_threshold: float | None = between(0, 1, "a top choice is at least this likely.")
    dry_multiplier: float | None = between(0, 100, "penalty on repeating a sequence; 0: off.")
    dry_base: float | None = between(0, 100, "each further token of the sequence multiplies the penalty by this.")
    dry_allowed_length: int | None = between(0, 1_000_000, "a repeated sequence up to this length has no penalty.")
    dry_penalty_last_n: int | None = between(-1, 1_000_000, "it looks back on so many tokens; -1: the whole context.")
    mirostat: int | None = between(0, 2, "1 or 2: Mirostat instead of truncation.")
    mirostat_tau: float | None = between(0, 1000, "its target entropy.")
    mirostat_eta: float | None = between(0, 1000, "its learning rate.")
    backend_sampling: bool | None = Field(None, description="llama.cpp's: without effect on the answer.")
    adaptive_target: float | None = Field(None, le=1, description="llama.cpp's: not supported, unless negative: off.")
    adaptive_decay: float | None = Field(None, ge=0, le=0.99, description="llama.cpp's: without effect, as that is.")

    @field_validator("adaptive_target")
    @classmethod
    def _not_adaptive(cls, target: float | None) -> float | None:
        if target is not None and target >= 0:
            raise ValueError("the adaptive sampler is not supported")
        return target
