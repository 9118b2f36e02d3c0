"""The number of tokens to draft: the cost of rows, the share that is accepted, and what a draft may lose."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.drafting.length import (
    BUDGET_PER_STEP,
    FIRST_BUDGET,
    MAX_AGE,
    MAX_ROWS,
    PAUSE,
    SIZES,
    Acceptance,
    DraftLength,
    LossBudget,
    RowCosts,
    best_draft,
)

# Seconds of a step by its rows: tiles of four as on a CPU, cheap rows as on a GPU, and rows that gain nothing.
TILES = {1: 1.0, 2: 1.4, 3: 1.6, 4: 1.8, 5: 1.9, 8: 2.6, 9: 3.2, 12: 3.7, 16: 4.6, 32: 8.2}
CHEAP = {1: 1.0, 2: 1.02, 4: 1.04, 8: 1.1, 16: 1.2, 32: 1.5}
LINEAR = {1: 1.0, 32: 32.0}
SHAPES = {"tiles": TILES, "cheap": CHEAP, "linear": LINEAR}
MOST = 12


def best_length(p: float, costs: RowCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0) -> int:
    return best_draft([p], costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens).n_tokens


def true_cost(shape: dict[int, float], n_rows: int) -> float:
    for (low, cost), (high, higher) in pairwise(sorted(shape.items())):
        if low <= n_rows <= high:
            return cost + (higher - cost) * (n_rows - low) / (high - low)
    raise ValueError(n_rows)


def measured(shape: dict[int, float]) -> RowCosts:
    costs = RowCosts()
    for n_rows in (1, *SIZES) * 3:
        costs.observe(n_rows, true_cost(shape, n_rows))
    return costs


def seconds_per_token(shape: dict[int, float], p: float, costs: RowCosts, *, n_tokens: int, seed: int) -> float:
    """Simulate a request: measured times are noisy, and one in a hundred is five times too long."""
    rng = random.Random(seed)
    budget = LossBudget()
    length = DraftLength(Acceptance(0.6), budget)
    n_done, seconds = 0, 0.0
    while n_done < n_tokens:
        budget.count_step()
        n_drafted = length.choose(costs, MOST)
        n_accepted = 0
        while n_accepted < n_drafted and rng.random() < p:
            n_accepted += 1
        step = true_cost(shape, 1 + n_drafted)
        noise = 1.0 + 0.05 * abs(rng.gauss(0.0, 1.0))
        costs.observe(1 + n_drafted, step * noise * (5.0 if rng.random() < 0.01 else 1.0))
        length.learn(n_drafted, n_accepted)
        n_done, seconds = n_done + 1 + n_accepted, seconds + step
    return seconds / n_done


def best_constant(shape: dict[int, float], p: float) -> float:
    return min(true_cost(shape, 1 + k) / sum(p**i for i in range(k + 1)) for k in range(MOST + 1))


# -- costs ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, MAX_ROWS + 2), st.floats(1e-4, 10.0)), max_size=40))
def test_every_cost_is_positive_and_a_step_costs_no_less_than_one_row(steps: list[tuple[int, float]]) -> None:
    costs = RowCosts()
    for n_rows, seconds in [(1, 1.0), *steps]:
        costs.observe(n_rows, seconds)
    one = costs.of(1) or 0.0
    assert one > 0.0
    assert all((costs.of(n) or 0.0) >= one for n in range(1, 2 * MAX_ROWS))


def test_a_machine_that_gets_slower_changes_all_costs_alike() -> None:
    costs = measured(TILES)
    for _ in range(30):
        costs.observe(4, 5.4)
    assert [costs.of(n) for n in (1, 4, 8)] == pytest.approx([3.0, 5.4, 7.8])


def test_numbers_of_rows_that_do_not_occur_are_measured_anew() -> None:
    costs = measured({1: 1.0, 32: 300.0})
    assert best_length(0.9, costs, MOST) == 0
    for _ in range(2 * MAX_AGE):
        costs.observe(1, 1.0)
    assert best_length(0.9, costs, MOST) > 0


# -- acceptance -------------------------------------------------------------------------------------------------------


# -- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_the_best_length_is_within_three_percent_of_the_best_rate(shape: dict[int, float], p: float) -> None:
    k = best_length(p, measured(shape), MOST)
    assert true_cost(shape, 1 + k) / sum(p**i for i in range(k + 1)) <= 1.03 * best_constant(shape, p)


def test_a_step_full_of_other_sequences_has_no_drafts() -> None:
    costs = measured(TILES)
    assert best_length(0.9, costs, MOST) == 6
    assert best_length(0.9, costs, MOST, n_other_rows=MAX_ROWS - 3) <= 2
    assert best_length(0.9, costs, MOST, n_other_rows=MAX_ROWS - 1) == 0
    assert best_length(0.9, costs, MOST, n_other_rows=2 * MAX_ROWS) == 0
    assert best_length(0.9, costs, 0) == 0
    # The others' tokens are delayed, for more than the draft gives.
    assert best_length(0.7, costs, MOST, n_other_rows=3) > 0
    assert best_length(0.7, costs, MOST, n_other_rows=12, n_other_tokens=12) == 0


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("p", [0.1, 0.3])
def test_text_that_nobody_can_foretell_is_at_most_two_percent_slower(shape: dict[int, float], p: float) -> None:
    for seed in range(10):
        for n_tokens, limit in ((128, 1.02), (512, 1.01)):
            assert seconds_per_token(shape, 0.0, measured(shape), n_tokens=n_tokens, seed=seed) <= limit
    slow = [seconds_per_token(shape, p, measured(shape), n_tokens=128, seed=seed) for seed in range(10)]
    assert sum(slow) / len(slow) <= 1.02


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("p", [0.5, 0.8, 0.95, 1.0])
def test_a_long_text_is_about_as_fast_as_with_the_best_constant_length(name: str, p: float) -> None:
    # Nothing is measured at first, and single measurements are five times too long.
    shape = SHAPES[name]
    found = [seconds_per_token(shape, p, RowCosts(), n_tokens=3000, seed=seed) for seed in range(3)]
    assert sorted(found)[1] <= 1.1 * best_constant(shape, p)


def test_drafts_that_do_not_pay_are_tried_again_as_often_as_the_budget_allows() -> None:
    budget, costs, drafted = LossBudget(), measured(TILES), []
    length = DraftLength(Acceptance(0.0), budget)
    for step in range(3000):
        budget.count_step()
        n_drafted = length.choose(costs, MOST)
        if n_drafted:
            drafted.append(step)
            length.learn(n_drafted, 0)
    assert drafted[0] == PAUSE
    assert len(drafted) >= 8
    lost = FIRST_BUDGET + BUDGET_PER_STEP * drafted[-1]
    assert len(drafted) * (TILES[2] - 1.0) <= lost


def test_drafts_that_pay_again_are_found() -> None:
    length, costs = DraftLength(Acceptance(0.0)), measured(TILES)
    lengths = []
    for _ in range(150):
        lengths.append(length.choose(costs, MOST))
        length.learn(lengths[-1], lengths[-1])
    assert min(lengths[50:]) >= 3


def test_a_budget_may_be_shared() -> None:
    costs, budget = measured(TILES), LossBudget()
    first, second = (DraftLength(Acceptance(0.6), budget) for _ in range(2))
    n_drafted = first.choose(costs, MOST)
    assert n_drafted == 2
    first.take(n_drafted, FIRST_BUDGET)
    first.learn(n_drafted, 0)
    assert second.choose(costs, MOST) == 0
