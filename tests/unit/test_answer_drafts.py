"""The drafts of one answer, simulated: the time that they save in a copy with changes, and that they lose elsewhere."""

import random

from pyllmcancel.drafting.answer_drafts import AnswerDrafts
from pyllmcancel.drafting.experience import Experience
from pyllmcancel.drafting.sources import NGRAM
from tests.unit.test_drafting_length import TILES, measured, true_cost

MOST = 32


def cost(n_rows: int) -> float:
    return true_cost(TILES, n_rows)


def decode(prompt: list[int], answer: list[int], experience: Experience | None = None) -> tuple[float, AnswerDrafts]:
    """Decode an answer with drafts; returns the time, in steps of one row."""
    costs = measured(TILES)
    drafts = AnswerDrafts([*prompt, answer[0]], (), costs, experience or Experience())
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


def test_a_copy_with_changes_is_faster() -> None:
    source = tokens(1, 300)
    for n_between in (45, 100):
        changed = [5000 + n if n % n_between == n_between - 1 else token for n, token in enumerate(source)]
        seconds, drafts = decode([*source, 1, 2, 3, *source[:12]], changed[12:])
        assert len(changed) - 12 > 2.2 * seconds, drafts.counts
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


def test_an_owner_whose_texts_go_on_otherwise_is_soon_not_slower() -> None:
    """Each answer is short, and begins as its prompt does; nothing of the last ones is drafted in vain."""
    experience, seconds = Experience(), 0.0
    for number in range(12):
        source = tokens(20 + number, 300)
        answer = [*source[:12], *tokens(50 + number, 40)]
        took, _ = decode([*source, 1, 2, 3], answer, experience)
        seconds += took if number >= 6 else 0.0
    assert seconds < 1.01 * 6 * 52


def test_a_long_copy_is_nearly_as_fast_as_rows_allow() -> None:
    """Drafts become as long as a step can have. There 32 rows give 3.9 tokens in the time of one."""
    experience = Experience()
    seconds = 0.0
    for number in range(8):
        source = tokens(number, 150)
        took, _ = decode([*source, 1, 2, 3, *source[:6]], source[6:], experience)
        seconds += took
    assert 3.4 * seconds < 8 * 144


def test_a_draft_that_was_not_computed_counts_for_nothing() -> None:
    source = tokens(1, 60)
    drafts = AnswerDrafts([*source, *source[:20]], (), measured(TILES), Experience())
    assert drafts.propose(MOST)
    drafts.cut(0)
    drafts.follow(source[20:21])
    assert drafts.counts[NGRAM].n_drafted == 0
