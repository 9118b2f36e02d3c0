"""The costs of a draft model: measured, assumed until then, and measured anew."""

from __future__ import annotations

import pytest

from pyllmcancel.drafting.model_costs import (
    ASSUMED_COST,
    DOUBT,
    FIRST_CHUNK,
    FIRST_DRAFT,
    MAX_AGE,
    MIN_CHUNK,
    MIN_MEASURED,
    DraftModelCosts,
)


class Steps:
    """A step of the model takes a second, whatever its number of rows."""

    def of(self, n_rows: int) -> float | None:
        return 1.0


def per_token(costs: DraftModelCosts, n_sequences: int = 1) -> float:
    """Return the seconds that a drafted token adds to a step that has a row without it."""
    found = [costs.with_drafts(Steps(), 1, n_sequences).of(n_rows) for n_rows in (1, 2, 4)]
    assert found[0] == 1.0
    assert found[1] is not None
    assert found[2] is not None
    assert found[2] - 1.0 == pytest.approx(3 * (found[1] - 1.0))
    return found[1] - 1.0


def measured(seconds: float, n_sequences: int = 1) -> DraftModelCosts:
    costs = DraftModelCosts()
    for _ in range(MIN_MEASURED):
        costs.observe_step(n_sequences, n_sequences, seconds)
    return costs


def test_costs_are_assumed_until_some_steps_are_measured() -> None:
    costs = DraftModelCosts()
    for seconds in (9.0, 0.25, 9.0, 0.25, *(MIN_MEASURED - 5) * [0.25]):
        costs.observe_step(1, 1, seconds)
    assert (per_token(costs), costs.n_tried) == (pytest.approx(ASSUMED_COST), FIRST_DRAFT)
    costs.observe_step(1, 1, 0.25)
    assert (per_token(costs), costs.n_tried) == (pytest.approx(0.25), None)


def test_the_tokens_before_a_draft_count_for_its_first_token() -> None:
    costs = measured(0.1)
    for _ in range(3):
        costs.observe_step(1, 12, 0.6)
    with_lag = costs.with_drafts(Steps(), 1, 1, lag=12)
    assert [with_lag.of(n_rows) for n_rows in (1, 2, 3)] == [1.0, pytest.approx(1.6), pytest.approx(1.7)]
    assert per_token(costs) == pytest.approx(0.1)


def test_answers_that_are_drafted_for_together_share_the_cost() -> None:
    assert per_token(measured(0.5, n_sequences=4), 4) == pytest.approx(0.125)


def test_what_was_too_slow_is_doubted_and_tried_by_a_short_draft() -> None:
    costs = measured(9.0)
    for n_doubts in (1, 2):
        for _ in range(MAX_AGE):
            costs.with_drafts(Steps(), 1, 1)
        assert per_token(costs) == pytest.approx(9.0 * DOUBT**n_doubts)
        assert costs.n_tried == FIRST_DRAFT
    costs.observe_step(1, 1, 9.0)
    assert (per_token(costs), costs.n_tried) == (pytest.approx(9.0), None)
    for _ in range(2 * MAX_AGE - 10):  # it was as slow again: it is doubted later
        costs.with_drafts(Steps(), 1, 1)
    assert costs.n_tried is None


def test_chunks_of_a_text_follow_their_cost() -> None:
    costs = DraftModelCosts()
    assert (costs.chunk(0.5), costs.of_text(1000)) == (FIRST_CHUNK, 0.0)
    costs.observe_text(MIN_CHUNK - 1, 9.0)  # too few to say anything
    assert costs.chunk(0.5) == FIRST_CHUNK
    costs.observe_text(64, 0.064)
    assert costs.chunk(0.5) == pytest.approx(500, abs=1)
    assert costs.of_text(1000) == pytest.approx(1.0)
    assert costs.chunk(0.0) == MIN_CHUNK
