"""Drafts of several answers in one step with divided cells: all have as many tokens, or none has any.

There llama.cpp computes sequences together that have as many rows as each other. Others take a further pass through
all weights, which costs more than a draft saves.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyllmcancel.drafting.length import best_draft, price_of

if TYPE_CHECKING:
    from pyllmcancel.drafting.answer_drafts import AnswerDrafts
    from pyllmcancel.drafting.length import StepCosts


def propose_alike(answers: Sequence[AnswerDrafts], costs: StepCosts, most: int) -> list[list[int]]:
    """Return a draft of each answer, all of the same length, at most `most`; empty lists if none pay."""
    none: list[list[int]] = [[] for _ in answers]
    n_known = [answer.look(most) for answer in answers]
    ps = [answer.p_of_found for answer in answers]
    length = min(n_known)
    while length := best_draft(ps, costs, length).n_tokens:
        price = price_of(len(answers) * length, costs, len(answers))  # of each: all wait for the step
        if all(answer.affords_found(price) for answer in answers):
            return [answer.take_found(length, price) for answer in answers]
        length -= 1
    return none
