"""Padding rows: the other rows get the same tokens with them, and nothing of them stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from pyllmcancel import _native
from pyllmcancel.step import StepStatus
from tests.native.conftest import World, ok
from tests.support.device import load_model
from tests.support.tiny_models import write_tiny_llama

LENGTHS = (40, 30, 20, 10)
PROMPTS = [[(7 * n + 11 * seq + 3) % 250 for n in range(length)] for seq, length in enumerate(LENGTHS)]
COUNT = 5


@pytest.fixture
def world(make_world: Any) -> World:
    return make_world("real attention")


@pytest.fixture(params=[True, False], ids=["unified", "divided"])
def padded(request: pytest.FixtureRequest, world: World) -> Any:
    return world.context(row_padding=True, kv_unified=request.param, n_ctx=1024)


def begin(world: World, context: Any, seqs: Sequence[int]) -> dict[int, list[int]]:
    """Compute the prompts of `seqs`; returns the first token of each answer."""
    for seq in seqs:
        world.open(context, seq, PROMPTS[seq])
    return {seq: world.run(context, seq, 1) for seq in seqs}


def go_on(world: World, context: Any, answers: dict[int, list[int]]) -> int:
    """Compute the rest of the answers, which are as alone; returns how many rows were added."""
    before = context.n_padding
    while any(len(tokens) < COUNT for tokens in answers.values()):
        for row in ok(context.step([(seq, 1) for seq in answers])):
            answers[row.seq].append(row.token)
    assert answers == {seq: world.alone(PROMPTS[seq], COUNT) for seq in answers}
    n_added: int = context.n_padding - before
    return n_added


def test_three_get_the_answers_that_they_get_alone(world: World, padded: Any) -> None:
    answers = begin(world, padded, (0, 1, 2))
    assert go_on(world, padded, answers) == COUNT - 1
    assert padded.n_cells_used == sum(LENGTHS[:3]) + 3 * (COUNT - 1)


def test_four_and_two_are_left_alone(world: World, padded: Any) -> None:
    for seqs in ((0, 1), (0, 1, 2, 3)):
        answers = begin(world, padded, seqs)
        assert go_on(world, padded, answers) == 0
        for seq in seqs:
            padded.close(seq, keep=False)


def test_a_chunk_of_a_prompt_is_filled_up_too(world: World, padded: Any) -> None:
    world.open(padded, 0, PROMPTS[0])
    ok(padded.step([(0, 23)]))
    assert padded.n_padding == 1
    assert padded.n_committed(0) == 23
    assert world.run(padded, 0, COUNT) == world.alone(PROMPTS[0], COUNT)


@pytest.mark.parametrize("is_open", [False, True], ids=["idle", "in the middle of its prompt"])
def test_a_neighbour_that_lends_its_place_keeps_what_it_had(world: World, is_open: bool) -> None:
    context = world.context(row_padding=True, kv_unified=False, n_ctx=1024)
    world.open(context, 3, PROMPTS[3])
    ok(context.step([(3, 6)]))
    if not is_open:
        context.close(3, keep=True)
    answers = begin(world, context, (0, 1, 2))
    assert go_on(world, context, answers) > 0
    if not is_open:
        assert context.tokens(3) == PROMPTS[3][:6]
        world.open(context, 3, PROMPTS[3])
    assert context.n_committed(3) == 6
    assert world.run(context, 3, COUNT) == world.alone(PROMPTS[3], COUNT)


def test_a_gap_between_neighbours_is_filled(world: World) -> None:
    context = world.context(row_padding=True, kv_unified=False, n_ctx=1024)
    answers = begin(world, context, (0, 2))
    assert go_on(world, context, answers) == 2 * (COUNT - 1)  # the gap, and one more for four


def test_in_any_order_of_the_items(world: World, padded: Any) -> None:
    answers = begin(world, padded, (0, 1, 3))
    answers = {seq: answers[seq] for seq in (3, 0, 1)}
    assert go_on(world, padded, answers) > 0


@pytest.mark.parametrize("seqs", [(0, 1, 2), (0, 2)], ids=["neighbours", "a gap"])
def test_without_a_fourth_place_there_is_no_padding(world: World, seqs: tuple[int, ...]) -> None:
    context = world.context(row_padding=True, kv_unified=False, n_ctx=768, n_seq_max=3)
    answers = begin(world, context, seqs)
    assert go_on(world, context, answers) == 0


def test_a_neighbour_with_a_long_history_lends_nothing(world: World) -> None:
    context = world.context(row_padding=True, kv_unified=False, n_ctx=4096)
    world.open(context, 1, [n % 250 for n in range(600)])
    while context.n_committed(1) < 600:
        ok(context.step([(1, min(128, 600 - context.n_committed(1)))]))
    answers = begin(world, context, (0, 2))
    assert go_on(world, context, answers) == 0


def test_a_full_context_is_not_padded(world: World) -> None:
    context = world.context(row_padding=True, n_ctx=256)
    long = [n % 250 for n in range(256)]
    world.open(context, 0, long)
    for n_tokens in (128, 125, 3):
        ok(context.step([(0, n_tokens)]))
    assert (context.n_padding, context.n_committed(0)) == (0, 256)


def test_parts_of_several_prompts_are_not_padded_in_divided_cells(world: World) -> None:
    context = world.context(row_padding=True, kv_unified=False, n_ctx=1024)
    for seq in (0, 1):
        world.open(context, seq, PROMPTS[seq])
    ok(context.step([(0, 4), (1, 3)]))
    assert context.n_padding == 0


def test_a_token_after_a_long_history_is_not_computed_as_padding(world: World) -> None:
    context = world.context(row_padding=True, n_ctx=1024)
    world.open(context, 0, [n % 250 for n in range(700)])
    for _ in range(5):
        ok(context.step([(0, 128)]))
    ok(context.step([(0, 3)]))
    assert context.n_padding == 0


def test_an_aborted_step_leaves_nothing_of_it(world: World, padded: Any) -> None:
    answers = begin(world, padded, (1, 2))
    before = padded.n_padding
    flag = world.open(padded, 0, PROMPTS[0])
    ok(padded.step([(0, 36)]))
    padded.raise_at(20, flag)
    assert padded.step([(0, 3)], cost_per_token=1.0).status is StepStatus.ABORTED
    assert (padded.n_committed(0), padded.n_padding) == (36, before)
    padded.close(0, keep=True)
    answers |= begin(world, padded, (0,))
    go_on(world, padded, answers)


@pytest.mark.parametrize("kind", ["real sliding-window", "real recurrent", "real hybrid"])
def test_only_memories_that_can_forget_a_token_are_padded(make_world: Any, kind: str) -> None:
    world = make_world(kind)
    context = world.context(row_padding=True)
    assert go_on(world, context, begin(world, context, (0, 1, 2))) == context.n_padding == 0


def test_weights_that_are_not_laid_out_in_fours_are_not_padded(world: World) -> None:
    context = world.context()
    assert go_on(world, context, begin(world, context, (0, 1, 2))) == context.n_padding == 0


def test_weights_that_are_laid_out_in_fours_are_padded(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "q4_0.gguf", quantization=GGMLQuantizationType.Q4_0)
    world = World(_native, "attention", path, load_model(path))
    context = world.context()
    answers = begin(world, context, (0, 1, 2))
    assert go_on(world, context, answers) == (COUNT - 1 if has_kernels_for_four_rows() else 0)


def has_kernels_for_four_rows() -> bool:
    """By what this was built for, which need not be all that this machine has. AMX has a layout of its own."""
    features = _native.kernel_features()
    return not features.isdisjoint({"AVX2", "NEON"}) and "AMX_INT8" not in features
