"""Drafts of several answers in one step with divided cells: all have as many tokens, or none has any.

There llama.cpp computes sequences together that have as many rows as each other. Others take a further pass through
all weights, which costs more than a draft saves.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyllmcancel.drafting.length import FEW, MAX_ROWS, MIN_GAIN, TILE

if TYPE_CHECKING:
    from pyllmcancel.drafting.answer_drafts import AnswerDrafts
    from pyllmcancel.drafting.length import StepCosts


def propose_alike(answers: Sequence[AnswerDrafts], costs: StepCosts, most: int) -> list[list[int]]:
    """Return a draft of each answer, all of the same length; empty lists if none pay.

    Parameters
    ----------
    most
        The limit of a draft.
    """
    none: list[list[int]] = [[] for _ in answers]
    n_known = [answer.look(most) for answer in answers]
    length = common_length([answer.p_of_found for answer in answers], costs, min(n_known))
    before, after = costs.of(len(answers)), costs.of(len(answers) * (1 + length))
    if not length or before is None or after is None:
        return none
    price = max(after / before - 1.0, 0.0)  # of each: all wait for the step
    if not all(answer.affords_found(price) for answer in answers):
        return none
    return [answer.take_found(length, price) for answer in answers]


def common_length(ps: Sequence[float], costs: StepCosts, most: int) -> int:
    """Return the number of tokens of each draft that gives the most tokens per second; possibly 0.

    Parameters
    ----------
    ps
        For each answer, the probability with which its next drafted token is accepted.
    """
    without = costs.of(len(ps))
    if without is None:
        return 0
    n_tokens = float(len(ps))
    best, best_rate = 0, MIN_GAIN * n_tokens / without
    limit = min(most, MAX_ROWS // len(ps) - 1)
    for k in range(1, limit + 1):
        n_tokens += sum(p**k for p in ps)
        n_rows = len(ps) * (1 + k)
        if FEW < k < limit and n_rows % TILE:
            continue
        rate = n_tokens / (costs.of(n_rows) or without)
        if rate > best_rate:
            best, best_rate = k, rate
    return best
