"""The contract of ``_native.pyi``, contexts and steps: kept by the compiled module and by its fake."""

import io
import pickle

import numpy as np
import pytest

from pyllmcancel import _native
from pyllmcancel.errors import ContextError, UsageError
from pyllmcancel.step import LogitFault, StepStatus
from tests.native.conftest import OTHER, PROMPT, World, ok


@pytest.mark.parametrize("name", ["n_ctx", "n_seq_max", "n_batch", "n_threads"])
def test_sizes_must_be_positive(world: World, name: str) -> None:
    with pytest.raises(UsageError):
        world.context(**{name: 0})


def test_a_batch_must_hold_a_token_of_every_sequence(world: World) -> None:
    with pytest.raises(ContextError):
        world.context(n_seq_max=4, n_batch=3)


def test_a_new_context_is_empty(world: World) -> None:
    context = world.context()
    assert context.n_ctx >= 512
    assert (context.n_seq_max, context.n_batch, context.n_cells_used) == (4, 128, 0)
    assert context.model is world.model
    assert context.memory_kind == world.model.memory_kind
    assert [context.n_committed(seq) for seq in range(4)] == [0] * 4


@pytest.mark.parametrize("seq", [-1, 4])
def test_there_is_no_other_sequence(world: World, seq: int) -> None:
    context = world.context()
    for call in (context.n_committed, context.tokens, context.logits, context.drop_cells):
        with pytest.raises(UsageError):
            call(seq)
    with pytest.raises(UsageError):
        context.close(seq, keep=True)
    with pytest.raises(UsageError):
        world.open(context, seq, PROMPT)


def test_an_open_sequence_cannot_be_opened(world: World) -> None:
    context = world.opened(PROMPT)
    with pytest.raises(UsageError):
        world.open(context, 0, OTHER)
    assert context.tokens(0) == PROMPT


@pytest.mark.parametrize("tokens", [[], [1, 10**6], [-1]])
def test_a_sequence_needs_tokens_of_the_vocabulary(world: World, tokens: list[int]) -> None:
    context = world.context()
    with pytest.raises(UsageError):
        world.open(context, 0, tokens)
    world.open(context, 0, PROMPT)


def test_a_prompt_in_chunks_gets_its_token_with_the_last(world: World) -> None:
    context = world.opened(PROMPT)
    (first,) = ok(context.step([(0, 25)]))
    assert (first.seq, first.n_tokens, first.token, first.fault) == (0, 25, -1, LogitFault.NONE)
    assert context.logits(0) is None
    (last,) = ok(context.step([(0, 15)]))
    assert last.token >= 0
    assert context.n_committed(0) == context.n_cells_used == 40
    assert context.tokens(0) == [*PROMPT, last.token]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_rest_between_steps_changes_nothing(world: World, n_threads: int) -> None:
    context = world.context(n_threads=n_threads)
    context.rest()
    world.open(context, 0, PROMPT)
    answer = []
    for _ in range(3):
        answer += world.run(context, 0, 1)
        context.rest()
        context.rest()
    assert answer == world.alone(PROMPT, 3)


def test_logits_are_a_read_only_row_of_the_last_step(world: World) -> None:
    context = world.opened(PROMPT)
    world.open(context, 1, OTHER)
    context.step([(0, 40)])
    logits = context.logits(0)
    assert logits.shape == (world.model.n_vocab,)
    assert logits.dtype == np.float32
    assert not logits.flags.writeable
    if world.native is _native:
        with pytest.raises(TypeError, match="read-write"):
            io.BytesIO(bytes(4)).readinto(logits.base.obj)
    assert context.logits(1) is None
    context.step([(1, 30)])
    assert context.logits(0) is None


def test_logprobs_are_those_of_the_logits(world: World) -> None:
    context = world.opened(PROMPT, n_logprobs=3, logit_bias=((77, 1e4),))
    (row,) = ok(context.step([(0, 40)]))
    logits = context.logits(0).astype(np.float64)
    logprobs = logits - np.logaddexp.reduce(logits)
    best = np.argsort(-logprobs, kind="stable")[:3]
    assert row.token == 77
    assert row.sampled[0].logprob == pytest.approx(logprobs[77], abs=1e-3)
    assert row.sampled[0].top_logprobs["token"].tolist() == best.tolist()
    np.testing.assert_allclose(row.sampled[0].top_logprobs["logprob"], logprobs[best], atol=1e-3)
    assert not row.sampled[0].top_logprobs.flags.writeable


def test_logprobs_without_alternatives_are_an_empty_array_and_none_if_nobody_asks(world: World) -> None:
    (asked,), (silent,) = (world.first_row(PROMPT, n_logprobs=n).sampled for n in (0, None))
    assert asked.logprob < 0.0
    assert asked.top_logprobs.tolist() == []
    assert (silent.logprob, silent.top_logprobs) == (None, None)


def test_a_result_outlives_its_context(world: World) -> None:
    context = world.opened(PROMPT, n_logprobs=2)
    (row,) = ok(context.step([(0, 40)]))
    before = row.sampled[0].top_logprobs.tolist()
    del context
    assert row.sampled[0].top_logprobs.tolist() == before
    assert pickle.loads(pickle.dumps(row.sampled[0].top_logprobs)).tolist() == before


def test_a_shared_batch_gives_each_sequence_what_it_gets_alone(world: World) -> None:
    context = world.opened(PROMPT)
    world.open(context, 1, OTHER)
    rows = ok(context.step([(1, 30), (0, 40)]))
    got = {row.seq: [row.token] for row in rows}
    for _ in range(5):
        for row in ok(context.step([(0, 1), (1, 1)])):
            got[row.seq].append(row.token)
    assert [row.seq for row in rows] == [1, 0]
    assert got == {0: world.alone(PROMPT, 6), 1: world.alone(OTHER, 6)}


INVALID_STEPS = {
    "nothing": [],
    "no tokens": [(0, 0)],
    "fewer than none": [(0, -1)],
    "more than are pending": [(0, 41)],
    "twice the same": [(0, 1), (0, 1)],
    "an idle sequence": [(1, 1)],
    "an unknown sequence": [(4, 1)],
    "a negative sequence": [(-1, 1)],
    "one good, one bad": [(0, 1), (1, 1)],
    "more than a batch": [(2, 129)],
}


@pytest.mark.parametrize("items", INVALID_STEPS.values(), ids=INVALID_STEPS.keys())
def test_a_step_that_makes_no_sense_changes_nothing(world: World, items: list[tuple[int, int]]) -> None:
    context = world.opened(PROMPT)
    world.open(context, 2, [3] * 200)
    with pytest.raises(UsageError):
        context.step(items)
    assert context.n_cells_used == 0
    assert world.run(context, 0, 3) == world.alone(PROMPT, 3)


def test_a_step_gives_way_to_a_flag_of_others_and_the_next_one_does_not(world: World) -> None:
    context = world.opened(PROMPT)
    world.open(context, 1, OTHER)
    way = world.native.CancelFlag()
    context.give_way(way)
    way.set()
    assert context.step([(0, 20), (1, 20)]).status is StepStatus.ABORTED
    assert [context.n_committed(seq) for seq in (0, 1)] == [0, 0]
    ok(context.step([(0, 20)]))
