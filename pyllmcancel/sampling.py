"""How the next token is chosen: one request's sampling parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pyllmcancel.errors import InvalidRequestError

MAX_LOGPROBS = 1000


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling parameters; the samplers and their order are llama.cpp's.

    Attributes
    ----------
    temperature
        0 takes the likeliest token.
    top_k
        Keep the k likeliest tokens; 0 keeps all.
    top_p, min_p, typical_p
        Nucleus, relative-to-the-best and locally-typical truncation, each in [0, 1].
    repeat_penalty, frequency_penalty, presence_penalty
        Penalties over the last `penalty_last_n` tokens (-1: the whole context).
    seed
        Seed of this request's own random state, 32 bits.
    n_logprobs
        Alternatives to report beside each token; None computes no logprobs.
    logit_bias
        Pairs of token and bias; a bias of -inf bans the token.
    grammar
        GBNF whose root rule is ``root``; empty for none.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int = 0
    ignore_eos: bool = False
    n_logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""

    def __post_init__(self) -> None:
        _between("temperature", self.temperature, 0.0, 100.0)
        _between("top_k", self.top_k, -1, 2**31 - 1)
        _between("top_p", self.top_p, 0.0, 1.0)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("typical_p", self.typical_p, 0.0, 1.0)
        _between("repeat_penalty", self.repeat_penalty, 0.01, 100.0)
        _between("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _between("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _between("penalty_last_n", self.penalty_last_n, -1, 1_000_000)
        _between("seed", self.seed, 0, 2**32 - 1)
        if self.n_logprobs is not None:
            _between("logprobs", self.n_logprobs, 0, MAX_LOGPROBS)
        for _token, bias in self.logit_bias:
            if math.isnan(bias) or bias == math.inf:
                raise InvalidRequestError("a bias must be a number or -inf", "logit_bias")

    def with_seed(self, seed: int) -> SamplingParams:
        return replace(self, seed=seed % 2**32)


def _between(name: str, value: float, low: float, high: float) -> None:
    # `not (low <= value <= high)` also refuses NaN.
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must lie between {low} and {high}, not {value}", name)
