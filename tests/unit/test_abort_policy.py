"""The abort policy, simulated over random mixes of cancelled and surviving sequences."""

import math
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel._native import worth_aborting


class Cost(NamedTuple):
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
def test_over_random_mixes_it_never_costs_more_than_any_rule(mix: list[list[tuple[int, float]]], cost: Cost) -> None:
    totals = {
        policy: sum(seconds_until_served(in_seconds(step, cost), cost, policy) for step in mix)
        for policy in (policy_of(cost), always, never)
    }
    ours, *others = totals.values()
    assert ours <= min(others) * (1.0 + 1e-9)
