"""llama.cpp's samplers: each has its effect, in the order that a request names."""

import math

import pytest

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.sampling import SAMPLERS, SamplingParams
from tests.native.conftest import World

WORLDS = ["real attention"]
PROMPT = [(7 * n + 3) % 250 for n in range(12)]
FREE = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}


def drawn(world: World, count: int = 24, **sampling: object) -> list[int]:
    return world.alone(PROMPT, count, **(FREE | sampling))


@pytest.mark.parametrize(
    "narrow",
    [
        {"top_n_sigma": 1e-6},
        {"typical_p": 0.0, "top_k": 1},
        {"top_k": 1},
        {"top_p": 0.0},
        {"top_p": 1e-6},
        {"min_p": 1.0},
        {"mirostat": 2, "mirostat_tau": 0.0},
        {"mirostat": 1, "temperature": 0.0},
        {"mirostat": 2, "temperature": 0.0},
        {"dynatemp_range": 0.0, "temperature": 1e-4},
    ],
    ids=lambda narrow: next(iter(narrow)),
)
def test_a_truncation_that_leaves_one_token_is_greedy(world: World, narrow: dict[str, object]) -> None:
    assert drawn(world, 6, **narrow) == world.alone(PROMPT, 6)


@pytest.mark.parametrize(
    "wide", [{"mirostat": 1}, {"mirostat": 2}, {"dynatemp_range": 0.9, "dynatemp_exponent": 3.0}, {"typical_p": 0.3}]
)
def test_a_sampler_that_is_on_changes_what_is_drawn(world: World, wide: dict[str, object]) -> None:
    assert drawn(world, **wide) != drawn(world)
    assert drawn(world, **wide) == drawn(world, **wide)


def test_top_choices_are_excluded_by_xtc(world: World) -> None:
    (likeliest,) = world.alone(PROMPT, 1)
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.001}
    assert all(drawn(world, 1, **xtc, seed=seed) != [likeliest] for seed in range(8))


def test_min_keep_outweighs_a_truncation(world: World) -> None:
    one = {drawn(world, 1, min_p=1.0, seed=seed)[0] for seed in range(8)}
    several = {drawn(world, 1, min_p=1.0, min_keep=50, seed=seed)[0] for seed in range(8)}
    assert len(one) == 1 < len(several)


def test_dry_keeps_a_sequence_from_going_on_as_it_did(world: World) -> None:
    cycle = [10, 20, 30, 40]
    prompt = cycle * 4 + cycle[:3]
    bias = ((40, 30.0),)  # the model now wants 40, which would repeat the cycle

    def answer(**sampling: object) -> int:
        context, sampler = world.sampled(prompt, logit_bias=bias, **sampling)
        sampler.accept_prompt(prompt)
        return world.run(context, 0, 1)[0]

    assert answer() == 40
    assert answer(dry_multiplier=100.0, dry_sequence_breakers=()) != 40
    breaker = world.model.piece(30).decode()
    assert answer(dry_multiplier=100.0, dry_sequence_breakers=(breaker,)) == 40


def test_samplers_that_are_not_named_do_not_apply(world: World) -> None:
    assert drawn(world, top_k=1, samplers=("temperature",)) == drawn(world)


def test_samplers_apply_in_the_order_named(world: World) -> None:
    # Hot first, `min_p` sees a flat distribution and keeps nearly all; cold, only the best.
    hot = {"temperature": 20.0, "min_p": 0.5}
    early = {drawn(world, 1, **hot, samplers=("min_p", "temperature"), seed=seed)[0] for seed in range(12)}
    late = {drawn(world, 1, **hot, samplers=("temperature", "min_p"), seed=seed)[0] for seed in range(12)}
    assert len(early) < len(late)


def test_an_unknown_sampler_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="top_q"):
        SamplingParams(samplers=(*SAMPLERS, "top_q"))


def test_logprobs_can_be_those_that_were_left(world: World) -> None:
    row = world.first_row(PROMPT, **FREE | {"top_k": 3}, n_logprobs=10, logprobs_after_sampling=True)
    top = row.sampled[0].top_logprobs
    assert len(top) == 3
    assert math.fsum(math.exp(entry) for entry in top["logprob"]) == pytest.approx(1.0, abs=1e-5)
    assert row.token in top["token"]


def test_what_is_left_of_a_greedy_choice_is_certain(world: World) -> None:
    row = world.first_row(PROMPT, n_logprobs=5, logprobs_after_sampling=True)
    top = row.sampled[0].top_logprobs
    assert (top["token"].tolist(), top["logprob"].tolist()) == ([row.token], [0.0])
