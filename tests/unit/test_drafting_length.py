"""The number of tokens to draft: the cost of rows, the accepted share, and what the drafts of an answer save."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.drafting.answer_drafts import AnswerDrafts, Experience
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
from pyllmcancel.drafting.sources import NGRAM

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


# -- one answer --------------------------------------------------------------------------------------------------------


MOST_ROWS = 32


def cost_of_tiles(n_rows: int) -> float:
    return true_cost(TILES, n_rows)


def decode(prompt: list[int], answer: list[int], experience: Experience | None = None) -> tuple[float, AnswerDrafts]:
    """Decode an answer with drafts; returns the time, in steps of one row."""
    costs = measured(TILES)
    drafts = AnswerDrafts([*prompt, answer[0]], (), costs, experience or Experience())
    place, seconds = 1, 0.0
    while place < len(answer):
        draft = drafts.propose(min(MOST_ROWS, len(answer) - place - 1))
        n_right = 0
        while n_right < len(draft) and draft[n_right] == answer[place + n_right]:
            n_right += 1
        seconds += cost_of_tiles(1 + len(draft))
        costs.observe(1 + len(draft), cost_of_tiles(1 + len(draft)))
        drafts.follow(answer[place : place + n_right + 1])
        place += n_right + 1
    return seconds, drafts


def random_tokens(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(2000) for _ in range(count)]


def test_a_copy_with_changes_is_faster() -> None:
    source = random_tokens(1, 300)
    for n_between in (45, 100):
        changed = [5000 + n if n % n_between == n_between - 1 else token for n, token in enumerate(source)]
        seconds, drafts = decode([*source, 1, 2, 3, *source[:12]], changed[12:])
        assert len(changed) - 12 > 2.2 * seconds, drafts.counts
        assert drafts.counts[NGRAM].n_accepted > 0.7 * drafts.counts[NGRAM].n_drafted


def test_a_long_match_that_goes_on_otherwise_costs_little() -> None:
    """The first random_tokens of the answer agree with the prompt, and nothing after them does."""
    source = random_tokens(2, 300)
    answer = [*source[:12], *random_tokens(3, 200)]
    seconds, _ = decode([*source, 1, 2, 3], answer)
    assert seconds < 1.035 * len(answer)


def test_what_nobody_can_foretell_costs_nothing() -> None:
    seconds, drafts = decode(random_tokens(4, 300), random_tokens(5, 200))
    assert seconds < 1.01 * 200
    assert drafts.counts[NGRAM].n_drafted <= 2


def test_an_owner_whose_texts_go_on_otherwise_is_soon_not_slower() -> None:
    """Each answer is short, and begins as its prompt does; nothing of the last ones is drafted in vain."""
    experience, seconds = Experience(), 0.0
    for number in range(12):
        source = random_tokens(20 + number, 300)
        answer = [*source[:12], *random_tokens(50 + number, 40)]
        took, _ = decode([*source, 1, 2, 3], answer, experience)
        seconds += took if number >= 6 else 0.0
    assert seconds < 1.01 * 6 * 52


def test_a_long_copy_is_nearly_as_fast_as_rows_allow() -> None:
    """Drafts become as long as a step can have. There 32 rows give 3.9 random_tokens in the time of one."""
    experience = Experience()
    seconds = 0.0
    for number in range(8):
        source = random_tokens(number, 150)
        took, _ = decode([*source, 1, 2, 3, *source[:6]], source[6:], experience)
        seconds += took
    assert 3.4 * seconds < 8 * 144


def test_a_draft_that_was_not_computed_counts_for_nothing() -> None:
    source = random_tokens(1, 60)
    drafts = AnswerDrafts([*source, *source[:20]], (), measured(TILES), Experience())
    assert drafts.propose(MOST_ROWS)
    drafts.cut(0)
    drafts.follow(source[20:21])
    assert drafts.counts[NGRAM].n_drafted == 0
