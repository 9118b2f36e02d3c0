"""The abort policy, simulated over random mixes of cancelled and surviving sequences."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel._native import worth_aborting

costs = st.tuples(st.floats(0.0, 10.0), st.floats(0.001, 1.0))


def cost_of(n_tokens: int, fixed: float, per_token: float) -> float:
    return fixed + per_token * n_tokens if n_tokens else 0.0


@given(st.integers(1, 512), st.integers(1, 64), st.floats(0.0, 1.0), costs)
def test_it_never_costs_more_than_always_aborting_or_never(
    n_cancelled: int, n_surviving: int, done: float, cost: tuple[float, float]
) -> None:
    n_tokens = n_cancelled + n_surviving
    finish = (1.0 - done) * cost_of(n_tokens, *cost)
    redo = cost_of(n_surviving, *cost)
    aborts = worth_aborting(n_tokens, n_surviving, done, fixed_cost=cost[0], cost_per_token=cost[1])
    assert (redo if aborts else finish) <= min(finish, redo)


@given(st.integers(1, 512), st.floats(0.0, 1.0), costs)
def test_a_step_that_nobody_wants_is_always_aborted(n_tokens: int, done: float, cost: tuple[float, float]) -> None:
    assert worth_aborting(n_tokens, 0, done, fixed_cost=cost[0], cost_per_token=cost[1])


def test_a_prompt_chunk_of_a_cancelled_sequence_is_worth_aborting_for_two_decodes() -> None:
    assert worth_aborting(66, 2, 0.1, fixed_cost=0.04, cost_per_token=0.008)


def test_a_decode_step_of_a_few_tokens_is_not() -> None:
    assert not worth_aborting(4, 3, 0.3, fixed_cost=0.04, cost_per_token=0.002)
