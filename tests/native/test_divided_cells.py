"""Divided cells: each sequence has its part to itself, and nothing else changes."""

from typing import Any

import pytest

from pyllmcancel.errors import ContextError
from pyllmcancel.step import StepResult, StepStatus
from tests.native.conftest import OTHER, PROMPT, World, ok

WORLDS = ["real attention", "fake attention"]
THIRD = [(13 * n + 1) % 250 for n in range(20)]
DIVIDED: dict[str, Any] = {"kv_unified": False, "n_ctx": 1024}


def divided(world: World, **options: Any) -> Any:
    return world.context(**DIVIDED | options)


def test_each_sequence_has_its_part(world: World) -> None:
    context = divided(world)
    assert (context.kv_unified, context.n_ctx, context.n_cells) == (False, 256, 1024)
    assert context.model.can_divide_cells
    unified = world.context(n_ctx=1024)
    assert (unified.kv_unified, unified.n_ctx, unified.n_cells) == (True, 1024, 1024)


@pytest.mark.parametrize("kind", ["real recurrent", "real hybrid", "fake recurrent", "fake hybrid"])
def test_other_memories_stay_unified(make_world: Any, kind: str) -> None:
    context = divided(make_world(kind))
    assert (context.kv_unified, context.n_ctx) == (True, 1024)
    assert not context.model.can_divide_cells


@pytest.mark.parametrize("seqs", [(0, 1, 2), (0, 2, 3), (1, 3, 0)], ids=["neighbours", "a gap", "any order"])
def test_sequences_compute_together_as_alone(world: World, seqs: tuple[int, ...]) -> None:
    context = divided(world)
    prompts = (PROMPT, OTHER, THIRD)
    answers: dict[int, list[int]] = {seq: [] for seq in seqs}
    for seq, prompt in zip(seqs, prompts, strict=True):
        world.open(context, seq, prompt)
        (row,) = ok(context.step([(seq, len(prompt))]))
        answers[seq].append(row.token)
    for _ in range(4):
        for row in ok(context.step([(seq, 1) for seq in seqs])):
            answers[row.seq].append(row.token)
    assert [answers[seq] for seq in seqs] == [world.alone(prompt, 5) for prompt in prompts]


def test_a_sequence_can_be_filled_to_its_end_beside_others(world: World) -> None:
    context = divided(world)
    world.open(context, 1, OTHER)
    context.step([(1, 30)])
    world.open(context, 0, [n % 250 for n in range(256)])
    for _ in range(2):
        ok(context.step([(0, 128)]))
    assert context.n_committed(0) == context.n_ctx
    assert world.run(context, 1, 2) == world.alone(OTHER, 3)[1:]


def test_a_shared_prefix_is_copied(world: World) -> None:
    world = world.with_flash_attention()
    context = world.computed(PROMPT, 40, **DIVIDED)
    assert context.share_prefix(0, 2, 25, max_bytes=1 << 30)
    assert (context.n_committed(2), context.tokens(2)) == (25, PROMPT[:25])
    prompt = [*PROMPT[:25], *OTHER]
    world.open(context, 2, prompt)
    assert context.n_committed(2) == 25
    assert world.run(context, 2, 4) == world.alone(prompt, 4)
    assert world.run(context, 0, 3) == world.alone(PROMPT, 4)[1:]


def test_a_prefix_that_is_too_large_to_copy_is_not_shared(world: World) -> None:
    world = world.with_flash_attention()
    context = world.computed(PROMPT, 40, **DIVIDED)
    assert not context.share_prefix(0, 2, 25, max_bytes=1000)
    assert context.n_committed(2) == 0
    world.open(context, 2, PROMPT)
    assert world.run(context, 2, 4) == world.alone(PROMPT, 4)


def test_a_swapped_prefix_comes_back_elsewhere(world: World) -> None:
    world = world.with_flash_attention()
    context = world.computed(PROMPT, 40, **DIVIDED)
    context.close(0, keep=True)
    prefix = context.copy_out(0, max_bytes=1 << 30)
    context.drop_cells(0)
    assert context.swap_in(3, prefix)
    world.open(context, 3, [*PROMPT, *OTHER])
    assert context.n_committed(3) == 40
    assert world.run(context, 3, 4) == world.alone([*PROMPT, *OTHER], 4)


def two_prompts(world: World, *, share: float, cancel_both: bool) -> tuple[Any, StepResult]:
    """A step of two prompts, a graph for each, in which the second is cancelled when `share` of it is computed.

    With `cancel_both` the first was, before. Returns the context, in which the second is closed, and the step's result.
    """
    context = divided(world)
    world.open(context, 0, PROMPT)
    world.open(context, 2, OTHER)
    polls = context.step([(0, 40), (2, 30)]).polls
    context = divided(world)
    first, second = world.open(context, 0, PROMPT), world.open(context, 2, OTHER)
    context.raise_at(max(1, round(share * polls)), second)
    if cancel_both:
        first.set()
    result = context.step([(0, 40), (2, 30)], cost_per_token=1.0)
    context.close(2, keep=True)
    return context, result


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_a_step_of_several_graphs_is_finished_for_the_one_that_is_not_cancelled(world: World, share: float) -> None:
    """Its progress cannot be derived from the nodes of one of its graphs, so nothing is weighed."""
    context, result = two_prompts(world, share=share, cancel_both=False)
    assert (result.status, result.spared) == (StepStatus.OK, True)
    assert [row.token for row in result.rows] == [world.alone(PROMPT, 1)[0], -1]
    assert world.run(context, 0, 3) == world.alone(PROMPT, 4)[1:]
    world.open(context, 2, OTHER)
    assert world.run(context, 2, 4) == world.alone(OTHER, 4)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.75, 1.0])
def test_an_aborted_step_of_several_graphs_leaves_nothing_behind(world: World, share: float) -> None:
    context, result = two_prompts(world, share=share, cancel_both=True)
    assert result.status is StepStatus.ABORTED
    assert (context.n_committed(0), context.n_committed(2)) == (0, 0)
    context.close(0, keep=True)
    for seq, prompt in ((0, PROMPT), (2, OTHER)):
        world.open(context, seq, prompt)
        assert world.run(context, seq, 4) == world.alone(prompt, 4)


def test_fewer_cells_than_sequences_are_refused(world: World) -> None:
    with pytest.raises(ContextError, match="too small for 200 sequences"):
        divided(world, n_ctx=128, n_seq_max=200, n_batch=256)


def test_without_flash_attention_nothing_is_copied(world: World) -> None:
    context = world.computed(PROMPT, 40, **DIVIDED)
    assert not context.share_prefix(0, 1, 30, max_bytes=1 << 30)
    assert not context.can_swap
