"""When a copy is worth its time."""

from __future__ import annotations

import math

import pytest

from pyllmcancel.step_cost import StepCostModel
from pyllmcancel.swap_policy import SwapPolicy

N_TOKENS, N_BYTES = 140, 15 << 20  # of a 0.6B model


def policy_where(copy: float, compute: float, *, n_left: int, returns: int = 0) -> SwapPolicy:
    """After so many prefixes that took `copy` seconds each, and `compute` to compute; one of `returns` came back."""
    cost = StepCostModel()
    cost.observe(N_TOKENS, compute)
    policy = SwapPolicy(cost)
    for n in range(n_left):
        policy.note_copy(N_BYTES, copy)
        policy.note_left()
        if returns and n % returns == 0:
            policy.note_returned(1.0)
    return policy


def test_a_quick_copy_is_worth_it_however_few_come_back() -> None:
    assert policy_where(0.003, 0.5, n_left=1000).is_worth_copying(N_TOKENS, N_BYTES)


def test_a_slow_one_is_not_if_nobody_comes_back() -> None:
    assert not policy_where(0.05, 0.5, n_left=10).is_worth_copying(N_TOKENS, N_BYTES)


def test_a_slow_one_is_if_every_fourth_comes_back() -> None:
    assert policy_where(0.05, 0.5, n_left=40, returns=4).is_worth_copying(N_TOKENS, N_BYTES)


def test_before_anything_is_known_it_is() -> None:
    assert SwapPolicy(StepCostModel()).is_worth_copying(N_TOKENS, N_BYTES)


def test_what_was_not_copied_and_is_asked_for_makes_the_next_worth_it() -> None:
    policy = policy_where(0.05, 0.5, n_left=10)
    for _ in range(4):
        policy.note_skipped()
        policy.note_left()
        policy.note_returned(1.0)
    assert policy.is_worth_copying(N_TOKENS, N_BYTES)


def test_now_and_then_it_is_tried_again_whether_copies_have_become_quick() -> None:
    policy = policy_where(0.05, 0.5, n_left=40)
    n_none = 0
    while not policy.is_worth_copying(N_TOKENS, N_BYTES):
        policy.note_skipped()
        policy.note_left()
        n_none += 1
    assert 20 < n_none < 200
    policy.note_copy(N_BYTES, 0.003)
    policy.note_copy(N_BYTES, 0.003)
    policy.note_copy(N_BYTES, 0.003)
    assert policy.is_worth_copying(N_TOKENS, N_BYTES)


def test_what_computing_takes_is_learnt_from_prompts_however_many_tokens_came_one_by_one_since() -> None:
    cost = StepCostModel()
    assert cost.of_prompt(100) == math.inf
    cost.observe(100, 0.5)
    for n in range(500):
        cost.observe(3 + n % 2, 0.05 - 0.01 * (n % 2))
    assert cost.of_prompt(200) == pytest.approx(1.0)


def test_a_small_copy_that_was_held_up_says_little() -> None:
    policy = policy_where(0.003, 0.5, n_left=40)
    policy.note_copy(1 << 20, 0.01)
    assert policy.is_worth_copying(N_TOKENS, N_BYTES)


def test_no_more_is_expected_to_come_back_than_leaves() -> None:
    policy = SwapPolicy(StepCostModel())
    for _ in range(100):
        policy.note_returned(1.0)
    assert policy.return_rate == 1.0
