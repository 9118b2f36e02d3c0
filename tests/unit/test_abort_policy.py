"""The abort policy: decision by decision, and simulated over random mixes of cancelled and surviving sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel._native import worth_aborting


class Cost(NamedTuple):
    """The seconds that a step of n tokens takes."""

    fixed: float
    per_token: float

    def of(self, n_tokens: int) -> float:
        return self.fixed + self.per_token * n_tokens if n_tokens else 0.0


class Member(NamedTuple):
    """A sequence's tokens in a step, and when it is cancelled: seconds after the step's beginning, or never."""

    n_tokens: int
    cancelled_at: float = math.inf


# (tokens of the step, tokens of its survivors, fraction done) to whether it is aborted.
Policy = Callable[[int, int, float], bool]

costs = st.builds(Cost, st.floats(0.0, 10.0), st.floats(0.001, 1.0))
# Decodes and chunks of prompts. Moments are in units of the step's length: cancels meet all of it, and its repetition.
members = st.tuples(st.sampled_from([1, 1, 1, 16, 64, 256]), st.one_of(st.just(math.inf), st.floats(0.0, 1.5)))
steps = st.lists(members, min_size=1, max_size=8)


def policy_of(cost: Cost) -> Policy:
    return lambda n_tokens, n_surviving, done: worth_aborting(
        n_tokens, n_surviving, done, fixed_cost=cost.fixed, cost_per_token=cost.per_token
    )


def always(_n_tokens: int, _n_surviving: int, _done: float) -> bool:
    return True


def never(_n_tokens: int, n_surviving: int, _done: float) -> bool:
    return n_surviving == 0


def seconds_until_served(step: list[Member], cost: Cost, policy: Policy) -> float:
    """Seconds until all survivors have the step's result; after an abort their part is computed again."""
    now = 0.0
    while wanted := [member for member in step if member.cancelled_at > now]:
        n_tokens = sum(member.n_tokens for member in wanted)
        began, length = now, cost.of(n_tokens)
        for moment in sorted(member.cancelled_at for member in wanted if member.cancelled_at < began + length):
            n_surviving = sum(member.n_tokens for member in wanted if member.cancelled_at > moment)
            if policy(n_tokens, n_surviving, (moment - began) / length):
                now = moment
                break
        else:
            return began + length
    return now


def in_seconds(step: list[tuple[int, float]], cost: Cost) -> list[Member]:
    length = cost.of(sum(n_tokens for n_tokens, _ in step))
    return [Member(n_tokens, moment * length) for n_tokens, moment in step]


@given(st.lists(steps, min_size=1, max_size=20), costs)
def test_over_random_mixes_it_never_costs_more_than_always_aborting_or_never(
    mix: list[list[tuple[int, float]]], cost: Cost
) -> None:
    totals = {
        policy: sum(seconds_until_served(in_seconds(step, cost), cost, policy) for step in mix)
        for policy in (policy_of(cost), always, never)
    }
    ours, *others = totals.values()
    assert ours <= min(others) * (1.0 + 1e-9)


def test_a_mix_of_prompts_and_decodes_costs_less_than_always_aborting_and_than_never() -> None:
    cost = Cost(0.04, 0.008)
    mix = [[Member(64, 0.01), Member(1)], [Member(1, 0.05), *[Member(1)] * 7], [Member(64, 0.5), Member(1), Member(1)]]
    ours, eager, patient = (
        sum(seconds_until_served(step, cost, policy) for step in mix) for policy in (policy_of(cost), always, never)
    )
    assert ours < min(eager, patient)


@given(st.integers(1, 512), st.integers(1, 64), st.floats(0.0, 1.0), costs)
def test_of_finishing_and_redoing_it_takes_the_cheaper(
    n_cancelled: int, n_surviving: int, done: float, cost: Cost
) -> None:
    n_tokens = n_cancelled + n_surviving
    finish = (1.0 - done) * cost.of(n_tokens)
    redo = cost.of(n_surviving)
    assert (redo if policy_of(cost)(n_tokens, n_surviving, done) else finish) <= min(finish, redo)


@given(st.integers(1, 512), st.floats(0.0, 1.0), costs)
def test_a_step_without_survivors_is_always_aborted(n_tokens: int, done: float, cost: Cost) -> None:
    assert policy_of(cost)(n_tokens, 0, done)


def test_a_prompt_chunk_of_a_cancelled_sequence_is_worth_aborting_for_two_decodes() -> None:
    assert policy_of(Cost(0.04, 0.008))(66, 2, 0.1)


def test_a_decode_step_of_a_few_tokens_is_not() -> None:
    assert not policy_of(Cost(0.04, 0.002))(4, 3, 0.3)
