"""The contract of ``_native.pyi``, drafts: kept by the compiled module and by its fake."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pyllmcancel.errors import UsageError
from pyllmcancel.step import MOST_EXTRA_OUTPUTS, LogitFault, StepItem, StepRow, StepStatus
from tests.native.conftest import OTHER, PROMPT, World, mask_of, ok

WRONG = 251  # a token that the answers here do not contain where it is drafted
WORLDS = ["real attention", "real sliding-window", "fake attention"]  # whose memories can undo a rejected draft
LENGTH = 24  # tokens of an answer


def tokens_of(row: StepRow) -> list[int]:
    return [sampled.token for sampled in row.sampled]


def answer_with(world: World, draft_of: Callable[[list[int]], Sequence[int]], **sampling: Any) -> list[int]:
    context = world.opened(PROMPT, **sampling)
    answer = list[int]()
    n_tokens = len(PROMPT)
    while len(answer) < LENGTH:
        (row,) = ok(context.step([StepItem(0, n_tokens, draft_of(answer))]))
        answer += tokens_of(row)
        n_tokens = 1
        # One token is known and not computed, and no cell is left of what was rejected.
        assert context.tokens(0) == [*PROMPT, *answer]
        assert context.n_committed(0) == context.n_cells_used == len(PROMPT) + len(answer) - 1
    return answer[:LENGTH]


@pytest.mark.parametrize("n_drafted", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1, "seed": 11}, {"repeat_penalty": 1.3, "dry_multiplier": 1}])
@pytest.mark.parametrize("n_right", [0, 1, 8])
def test_drafts_change_no_token(world: World, n_drafted: int, sampling: dict[str, Any], n_right: int) -> None:
    expected = world.alone(PROMPT, LENGTH + n_drafted + 1, **sampling)

    def draft_of(answer: list[int]) -> list[int]:
        right = expected[len(answer) : len(answer) + n_drafted]
        return [token if place < n_right else WRONG for place, token in enumerate(right)]

    assert answer_with(world, draft_of, **sampling) == expected[:LENGTH]


def test_the_accepted_tokens_come_with_one_more(world: World) -> None:
    expected = world.alone(PROMPT, 4)
    context = world.opened(PROMPT)
    (row,) = ok(context.step([StepItem(0, len(PROMPT), [*expected[:2], WRONG])]))
    assert tokens_of(row) == expected[:3]
    assert row.n_tokens == len(PROMPT) + 2
    assert row.token == expected[0]
    assert int(np.argmax(context.logits(0))) == expected[2]


def test_each_token_of_a_draft_has_its_logprobs(world: World) -> None:
    expected = world.alone(PROMPT, 4)
    context, apart = world.context(), world.context()
    for one in (context, apart):
        world.open(one, 0, PROMPT, n_logprobs=2)
    (row,) = ok(context.step([StepItem(0, len(PROMPT), expected[:3])]))
    singly = [ok(apart.step([(0, len(PROMPT) if n == 0 else 1)]))[0].sampled[0] for n in range(4)]
    for drafted, single in zip(row.sampled, singly, strict=True):
        assert drafted.token == single.token
        assert drafted.logprob == pytest.approx(single.logprob, abs=1e-4)
        assert drafted.top_logprobs["token"].tolist() == single.top_logprobs["token"].tolist()


def test_each_token_of_a_draft_has_its_mask(world: World) -> None:
    """The masks force tokens that the model would not choose; the draft foresees them."""
    forced = [3, 1, 4]
    context, sampler = world.sampled(PROMPT)
    sampler.restrict(*(mask_of(world.model.n_vocab, token) for token in forced))
    (row,) = ok(context.step([StepItem(0, len(PROMPT), forced[:2])]))
    assert tokens_of(row) == forced
    # Masks of tokens that were not reached are gone with the next call.
    sampler.restrict(mask_of(world.model.n_vocab, 5), mask_of(world.model.n_vocab, 9))
    (row,) = ok(context.step([StepItem(0, 1, [WRONG])]))
    assert tokens_of(row) == [5]
    sampler.restrict(None)
    (row,) = ok(context.step([(0, 1)]))
    assert tokens_of(row) == world.alone([*PROMPT, *forced, 5], 1)


def test_a_faulty_row_of_a_draft_keeps_the_tokens_before_it(world: World) -> None:
    expected = world.alone(PROMPT, 2)
    context, sampler = world.sampled(PROMPT)
    sampler.restrict(None, np.zeros_like(mask_of(world.model.n_vocab, 0)))
    (row,) = ok(context.step([StepItem(0, len(PROMPT), [expected[0], 7])]))
    assert (tokens_of(row), row.fault) == ([expected[0]], LogitFault.GRAMMAR)
    assert context.n_committed(0) == len(PROMPT) + 1


def test_a_draft_changes_nothing_for_its_neighbours(world: World) -> None:
    expected = [world.alone(prompt, 6) for prompt in (PROMPT, OTHER)]
    context = world.context()
    answers = [world.run(*opened(world, context, seq, prompt)) for seq, prompt in enumerate((PROMPT, OTHER))]
    while min(map(len, answers)) < 6:
        drafts = [[*expected[0][len(answers[0]) :][:2], WRONG], [WRONG] * 4]
        for row in ok(context.step([StepItem(seq, 1, drafts[seq]) for seq in range(2)])):
            answers[row.seq] += tokens_of(row)
    assert [answer[:6] for answer in answers] == expected


def opened(world: World, context: Any, seq: int, prompt: list[int]) -> tuple[Any, int, int]:
    world.open(context, seq, prompt)
    return context, seq, 1


def test_a_cancel_ends_a_step_with_a_draft(world: World) -> None:
    """At every node that a cancel can come at: nothing of the step stays, and a later request is not harmed."""
    expected = world.alone(PROMPT, 6)
    context = world.opened(PROMPT)
    n_polls = context.step([StepItem(0, len(PROMPT), expected[:5])]).polls
    context.close(0, keep=False)
    for poll in range(1, n_polls, max(1, n_polls // 12)):
        flag = world.open(context, 0, PROMPT)
        ok(context.step([(0, len(PROMPT))]))
        context.raise_at(poll, flag)
        assert context.step([StepItem(0, 1, expected[1:5])]).status is StepStatus.ABORTED
        assert context.n_committed(0) == context.n_cells_used == len(PROMPT)
        context.close(0, keep=True)
        world.open(context, 0, [*PROMPT, *expected[:1]])
        (row,) = ok(context.step([StepItem(0, 1, expected[1:5])]))
        assert tokens_of(row) == expected[1:6]
        context.close(0, keep=False)


def test_a_step_ahead_may_follow_a_draft(world: World) -> None:
    expected = world.alone(PROMPT, 6)
    context = world.computed(PROMPT, len(PROMPT))
    result = context.step([StepItem(0, 1, expected[1:3])], ends=[(5, ())])
    assert result.ahead
    assert tokens_of(ok(result)[0]) == expected[1:4]
    assert tokens_of(ok(context.collect(goes_on=True))[0]) == expected[4:5]
    # The sixth token is the last wanted one.
    last = context.collect(goes_on=True)
    assert (tokens_of(ok(last)[0]), last.ahead) == (expected[5:6], False)


def test_no_step_follows_a_draft_with_an_end_in_it(world: World) -> None:
    expected = world.alone(PROMPT, 4)
    context = world.computed(PROMPT, len(PROMPT))
    assert not context.step([StepItem(0, 1, expected[1:3])], ends=[(100, [expected[1]])]).ahead


@pytest.mark.parametrize("memory", ["real recurrent", "real hybrid", "fake recurrent"])
def test_what_cannot_be_undone_is_not_drafted(make_world: Callable[[str], World], memory: str) -> None:
    world = make_world(memory)
    context = world.context()
    assert not context.can_draft
    world.open(context, 0, PROMPT)
    with pytest.raises(UsageError, match="undone"):
        context.step([StepItem(0, len(PROMPT), [1])])
    ok(context.step([(0, len(PROMPT))]))


@pytest.mark.parametrize(
    ("n_tokens", "draft", "match"),
    [
        (len(PROMPT) - 1, [1], "does not follow"),
        (len(PROMPT), [1] * (MOST_EXTRA_OUTPUTS + 4), "at most"),
        (len(PROMPT), [-1], "vocabulary"),
        (len(PROMPT), [1_000_000], "vocabulary"),
    ],
)
def test_bad_drafts_are_refused(world: World, n_tokens: int, draft: list[int], match: str) -> None:
    context = world.context()
    assert context.can_draft
    world.open(context, 0, PROMPT)
    with pytest.raises(UsageError, match=match):
        context.step([StepItem(0, n_tokens, draft)])
    assert context.n_committed(0) == 0
    assert world.run(context, 0, 3) == world.alone(PROMPT, 3)


def test_a_draft_ends_with_the_context(world: World) -> None:
    context = world.context(n_ctx=256, n_seq_max=1)
    prompt = [n % 250 for n in range(context.n_ctx - 3)]
    world.open(context, 0, prompt)
    for begin in range(0, len(prompt), 100):
        (first,) = ok(context.step([(0, min(100, len(prompt) - begin))]))
    with pytest.raises(UsageError, match="longer than the context"):
        context.step([StepItem(0, 1, [1] * 3)])
    (row,) = ok(context.step([StepItem(0, 1, [1] * 2)]))
    assert context.tokens(0) == [*prompt, first.token, *tokens_of(row)]
