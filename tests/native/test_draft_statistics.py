"""Sampled answers have the same distribution with drafts as without, by a statistic that would notice a difference.

A draft that is accepted too readily is the fault that one would not see in a single answer: the drafted token comes a
little too often. The statistic is chi-square, of how often each token was sampled, against the model's probabilities.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyllmcancel.step import StepItem
from tests.native.conftest import World, ok
from tests.native.test_contract_drafts import tokens_of

WORLDS = ["real attention"]
PROMPT = [(7 * n + 3) % 250 for n in range(24)]
TOP_K = 8  # tokens that can be sampled
N_SAMPLES = 3000
CRITICAL = 40.5  # of chi-square with TOP_K - 1 degrees of freedom: larger values are rarer than one in a million
SAMPLING = {"temperature": 1.0, "top_k": TOP_K, "top_p": 1.0, "min_p": 0.0}


def probabilities(world: World, tokens: Sequence[int]) -> dict[int, float]:
    """The model's distribution after `tokens`, of the TOP_K likeliest."""
    logits = world.computed(tokens, len(tokens)).logits(0).astype(np.float64)
    likeliest = np.argsort(-logits)[:TOP_K]
    weights = np.exp(logits[likeliest] - logits[likeliest].max())
    return dict(zip(likeliest.tolist(), (weights / weights.sum()).tolist(), strict=True))


def samples(world: World, draft: Sequence[int]) -> list[list[int]]:
    """The tokens that steps with a draft gave after PROMPT, by so many seeds."""
    context: Any = world.context()
    found = []
    for seed in range(N_SAMPLES):
        world.open(context, 0, PROMPT, seed=seed, **SAMPLING)
        n_pending = len(PROMPT) - context.n_committed(0)
        (row,) = ok(context.step([StepItem(0, n_pending, draft)]))
        found.append(tokens_of(row))
        context.close(0, keep=True)
    return found


def chi_square(found: Sequence[int], expected: dict[int, float]) -> float:
    counts = Counter(found)
    assert set(counts) <= set(expected)
    return sum((counts[token] - p * len(found)) ** 2 / (p * len(found)) for token, p in expected.items())


def accepted_too_readily(found: Sequence[int], drafted: int, share: float) -> list[int]:
    """As if so large a share of the rejected drafts had been accepted all the same."""
    every = round(1 / share)
    return [drafted if token != drafted and n % every == 0 else token for n, token in enumerate(found)]


def test_sampled_tokens_have_the_models_distribution(world: World) -> None:
    first = probabilities(world, PROMPT)
    drafted = max(first, key=lambda token: first[token])
    second = probabilities(world, [*PROMPT, drafted])
    rows = samples(world, [drafted, next(iter(second))])
    firsts = [row[0] for row in rows]
    assert chi_square(firsts, first) < CRITICAL
    # The tokens after an accepted draft, of which there are fewer.
    seconds = [row[1] for row in rows if row[0] == drafted]
    assert len(seconds) > N_SAMPLES / TOP_K / 2
    assert chi_square(seconds, second) < CRITICAL
    # The power of the statistic: a tenth more acceptance does not pass.
    assert chi_square(accepted_too_readily(firsts, drafted, 0.1), first) > CRITICAL
