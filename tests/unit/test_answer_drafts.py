"""The drafts of one answer, simulated: the time that they save in a copy with changes, and that they lose elsewhere."""

from __future__ import annotations

import random

from pyllmcancel.drafting.answer_drafts import NGRAM, AnswerDrafts
from pyllmcancel.drafting.length import MAX_ROWS, RowCosts

# The time of a step by its rows, in steps of one row: SmolLM2 on one thread of a CPU with AVX-512, where several rows
# gain little. Between these it is a straight line.
MEASURED = {
    1: 1.0,
    2: 1.85,
    3: 2.36,
    4: 2.80,
    5: 3.62,
    8: 4.76,
    9: 5.58,
    12: 6.63,
    13: 7.38,
    16: 8.60,
    17: 9.21,
    32: 16.2,
}
MOST = 16


def cost(n_rows: int) -> float:
    below = max(n for n in MEASURED if n <= n_rows)
    above = min(n for n in MEASURED if n >= n_rows)
    share = (n_rows - below) / (above - below) if above > below else 0.0
    return MEASURED[below] + share * (MEASURED[above] - MEASURED[below])


def known_costs() -> RowCosts:
    costs = RowCosts()
    for _ in range(4):
        for n_rows in range(1, MAX_ROWS + 1):
            costs.observe(n_rows, cost(n_rows))
    return costs


def decode(prompt: list[int], answer: list[int]) -> tuple[float, AnswerDrafts]:
    """Decode an answer with drafts; returns the time, in steps of one row."""
    costs = known_costs()
    drafts = AnswerDrafts([*prompt, answer[0]], (), costs)
    place, seconds = 1, 0.0
    while place < len(answer):
        draft = drafts.propose(min(MOST, len(answer) - place - 1))
        n_right = 0
        while n_right < len(draft) and draft[n_right] == answer[place + n_right]:
            n_right += 1
        seconds += cost(1 + len(draft))
        costs.observe(1 + len(draft), cost(1 + len(draft)))
        drafts.follow(answer[place : place + n_right + 1])
        place += n_right + 1
    return seconds, drafts


def tokens(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(2000) for _ in range(count)]


def test_a_copy_with_changes_is_faster_although_rows_are_expensive() -> None:
    source = tokens(1, 300)
    for n_between in (45, 100):
        changed = [5000 + n if n % n_between == n_between - 1 else token for n, token in enumerate(source)]
        seconds, drafts = decode([*source, 1, 2, 3, *source[:12]], changed[12:])
        assert len(changed) - 12 > 1.2 * seconds, drafts.counts
        assert drafts.counts[NGRAM].n_accepted > 0.7 * drafts.counts[NGRAM].n_drafted


def test_a_long_match_that_goes_on_otherwise_costs_little() -> None:
    """The first tokens of the answer agree with the prompt, and nothing after them does."""
    source = tokens(2, 300)
    answer = [*source[:12], *tokens(3, 200)]
    seconds, _ = decode([*source, 1, 2, 3], answer)
    assert seconds < 1.035 * len(answer)


def test_what_nobody_can_foretell_costs_nothing() -> None:
    seconds, drafts = decode(tokens(4, 300), tokens(5, 200))
    assert seconds < 1.01 * 200
    assert drafts.counts[NGRAM].n_drafted <= 2
