"""The costs of a draft model: measured, assumed until then, and measured anew."""

from __future__ import annotations

import pytest

from pyllmcancel.drafting.model_costs import ASSUMED_COST, FIRST_CHUNK, MAX_AGE, MIN_CHUNK, DraftModelCosts


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


def test_costs_are_assumed_until_two_drafts_are_measured() -> None:
    costs = DraftModelCosts()
    costs.observe_draft(1, 9.0)  # a slow one
    assert per_token(costs) == pytest.approx(ASSUMED_COST)
    costs.observe_draft(1, 0.25)
    assert per_token(costs) == pytest.approx(0.25)


def test_answers_that_are_drafted_for_together_share_the_cost() -> None:
    costs = DraftModelCosts()
    for n_sequences, seconds in ((1, 0.25), (1, 0.25), (4, 0.5), (4, 0.5), (4, 0.5)):
        costs.observe_draft(n_sequences, seconds)
    assert per_token(costs, 4) < 0.25


def test_what_was_too_slow_is_measured_anew() -> None:
    costs = DraftModelCosts()
    for _ in range(2):
        costs.observe_draft(1, 9.0)
    for _ in range(MAX_AGE - 1):
        costs.with_drafts(Steps(), 1, 1)
    assert per_token(costs) == pytest.approx(ASSUMED_COST)


def test_chunks_of_a_text_follow_their_cost() -> None:
    costs = DraftModelCosts()
    assert (costs.chunk(0.5), costs.of_text(1000)) == (FIRST_CHUNK, 0.0)
    costs.observe_text(MIN_CHUNK - 1, 9.0)  # too few to say anything
    assert costs.chunk(0.5) == FIRST_CHUNK
    costs.observe_text(64, 0.064)
    assert costs.chunk(0.5) == pytest.approx(500, abs=1)
    assert costs.of_text(1000) == pytest.approx(1.0)
    assert costs.chunk(0.0) == MIN_CHUNK
