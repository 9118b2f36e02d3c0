"""The sampling parameters of one request."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any

from pyllmcancel.errors import InvalidRequestError

# llama.cpp draws a seed of its own for this one.
RANDOM_SEED = 2**32 - 1
LEAST_TEMPERATURE = 1e-6  # lower ones take the likeliest token
MAX_LOGPROBS = 1000
# llama-server's names and order.
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
# For filling gaps: it prefers to end where the best candidates disagree. It applies only on request, after the
# truncations.
SAMPLERS_ON_REQUEST = ("infill",)
# llama.cpp's letters for the samplers.
SAMPLER_LETTERS = dict(zip("edskypmxti", (*SAMPLERS, *SAMPLERS_ON_REQUEST), strict=True))

# The advice that a model's file may have under ``general.sampling.``: llama.cpp's names, and ours.
ADVICE = {
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
    "sequence": "samplers",
    **{name: name for name in ("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "penalty_last_n")},
    **{name: name for name in ("mirostat", "mirostat_tau", "mirostat_eta")},
}

logger = logging.getLogger("pyllmcancel.engine")


def within(least: float, most: float, default: float) -> Any:
    """Return a field whose values lie between these two."""
    return field(default=default, metadata={"bounds": (least, most)})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling parameters; the samplers and their order are llama.cpp's.

    Attributes
    ----------
    temperature
        The temperature; below 1e-6 the likeliest token is taken, even if Mirostat is on.
    top_k
        Keep the k likeliest tokens; 0 or less keeps all.
    top_p, min_p, typical_p
        Nucleus, relative-to-the-best and locally-typical truncation, each in [0, 1].
    repeat_penalty, frequency_penalty, presence_penalty, penalty_last_n
        Penalties on repeating tokens, and the number of last tokens that they look at (-1: the whole context).
    seed
        Seed of this request's own random state, 64 bits with or without a sign; -1 draws one.
    ignore_eos
        Never choose a token that ends the answer; it goes on until another limit ends it.
    n_logprobs
        Alternatives to report beside each token; None computes no logprobs.
    logit_bias
        Pairs of token and bias; a bias of -inf bans the token.
    grammar
        GBNF whose root rule is ``root``; empty for none.
    grammar_prefix
        The beginning of the answer that is part of the prompt, if the grammar's texts begin with it: the grammar
        continues from there.
    grammar_triggers
        Pairs of kind and value. If there are any, the grammar is inactive until the answer contains one of them: a
        ``token`` (its id), a ``word``, a ``pattern`` (a regular expression to search for) or a ``pattern_full`` (which
        matches the whole answer). The grammar then applies from the trigger on, or for a pattern from its first group
        that is not empty. If the text there violates the grammar, the answer continues without the grammar.
    thinking_start, thinking_ends
        Marks between which no trigger counts; a mark that ends the thinking may itself be a trigger.
    top_n_sigma
        Keep tokens within this number of standard deviations of the best logit; 0 or less: off.
    dynatemp_range, dynatemp_exponent
        Entropy-dependent temperature within `temperature` ± range; a range of 0: off.
    xtc_probability, xtc_threshold
        Exclude top choices, with that probability, above that threshold.
    min_keep
        The minimum of tokens that truncations leave.
    mirostat, mirostat_tau, mirostat_eta
        0: off; 1 or 2: Mirostat of that version, with target entropy tau and learning rate eta, instead of truncation.
    dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers
        "Don't repeat yourself": the penalty on continuing a sequence that has occurred; a multiplier of 0: off.
    samplers
        The samplers to apply, in their order, out of `SAMPLERS` and `SAMPLERS_ON_REQUEST`.
    logprobs_after_sampling
        Report probabilities after truncation and temperature, not the model's own.
    """

    temperature: float = within(0.0, 100.0, 0.8)
    top_k: int = within(-1, 2**31 - 1, 40)
    top_p: float = within(0.0, 1.0, 0.95)
    min_p: float = within(0.0, 1.0, 0.05)
    typical_p: float = within(0.0, 1.0, 1.0)
    repeat_penalty: float = within(0.01, 100.0, 1.0)
    frequency_penalty: float = within(-100.0, 100.0, 0.0)
    presence_penalty: float = within(-100.0, 100.0, 0.0)
    penalty_last_n: int = within(-1, 1_000_000, 64)
    seed: int = within(-(2**63), 2**64 - 1, 0)
    ignore_eos: bool = False
    n_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""
    grammar_prefix: str = ""
    grammar_triggers: tuple[tuple[str, str], ...] = ()
    thinking_start: str = ""
    thinking_ends: tuple[str, ...] = ()
    top_n_sigma: float = within(-1.0, 1000.0, -1.0)
    dynatemp_range: float = within(0.0, 100.0, 0.0)
    dynatemp_exponent: float = within(0.0, 100.0, 1.0)
    xtc_probability: float = within(0.0, 1.0, 0.0)
    xtc_threshold: float = within(0.0, 1.0, 0.1)
    min_keep: int = within(0, 2**31 - 1, 0)
    mirostat: int = within(0, 2, 0)
    mirostat_tau: float = within(0.0, 1000.0, 5.0)
    mirostat_eta: float = within(0.0, 1000.0, 0.1)
    dry_multiplier: float = within(0.0, 100.0, 0.0)
    dry_base: float = within(0.0, 100.0, 1.75)
    dry_allowed_length: int = within(0, 1_000_000, 2)
    dry_penalty_last_n: int = within(-1, 1_000_000, -1)
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    samplers: tuple[str, ...] = SAMPLERS
    logprobs_after_sampling: bool = False

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.metadata:
                _between(one.name, getattr(self, one.name), *one.metadata["bounds"])
        if self.seed == -1:
            object.__setattr__(self, "seed", secrets.randbits(32))
        if len(set(self.samplers)) != len(self.samplers):
            raise InvalidRequestError("a sampler is named twice", "samplers")
        if unknown := set(self.samplers) - {*SAMPLERS, *SAMPLERS_ON_REQUEST}:
            raise InvalidRequestError(f"unknown samplers: {', '.join(sorted(unknown))}", "samplers")
        if self.n_logprobs is not None:
            _between("logprobs", self.n_logprobs, 0, MAX_LOGPROBS)
        for _token, bias in self.logit_bias:
            if math.isnan(bias) or bias == math.inf:
                raise InvalidRequestError("a bias must be a number or -inf", "logit_bias")

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is taken, whatever the seed is."""
        return self.temperature < LEAST_TEMPERATURE

    def with_seed(self, seed: int) -> SamplingParams:
        return replace(self, seed=seed)

    def of_choice(self, number: int) -> SamplingParams:
        """Return the parameters of a request's choice, with the 32 bits of seed that the samplers take."""
        seed = self.seed + number
        if not 0 <= seed < RANDOM_SEED:
            seed = int.from_bytes(sha256(b"%d" % seed).digest()[:8]) % RANDOM_SEED
        return replace(self, seed=seed)


def advised_sampling(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of SamplingParams that a model's file advises. Invalid advice is ignored, and logged."""
    found: dict[str, Any] = {}
    for name, ours in ADVICE.items():
        text = metadata.get(f"general.sampling.{name}")
        if text is None:
            continue
        kind: Any = type(getattr(SamplingParams(), ours))
        try:
            value: Any = tuple(filter(None, text.split(";"))) if kind is tuple else kind(float(text))
            replace(SamplingParams(), **{ours: value})
        except (InvalidRequestError, ValueError, OverflowError) as error:
            logger.warning("the model's file advises an invalid general.sampling.%s, which is ignored: %s", name, error)
        else:
            found[ours] = value
    return found


def _between(name: str, value: float, low: float, high: float) -> None:
    # `not (low <= value <= high)` also refuses NaN.
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must lie between {low} and {high}, not {value}", name)
