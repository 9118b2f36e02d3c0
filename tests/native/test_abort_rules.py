"""The rules for aborts, each where it is easiest to break: shared cells, the last node, the next step, the window."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyllmcancel.step import StepStatus
from tests.native.conftest import REAL, World, ok

NATIVE = Path(__file__).resolve().parents[2] / "native"
PROMPT = [(13 * n + 7) % 250 for n in range(120)]
OTHER = [(11 * n + 5) % 250 for n in range(40)]
CHUNK = 24
# Any step costs -1: aborting pays at every node, the last one included.
ALWAYS_ABORT = {"fixed_cost": -1.0, "cost_per_token": 0.0}
WorldMaker = Callable[[str], World]


def logits(context: Any, seq: int) -> NDArray[np.float32]:
    return np.array(context.logits(seq))


def n_nodes(world: World, context: Any, seq: int, n_tokens: int) -> int:
    """Graph nodes of a step of the next `n_tokens` of an open sequence, which is then where it was."""
    n_before, tokens = context.n_committed(seq), context.tokens(seq)
    polls: int = context.step([(seq, n_tokens)]).polls
    context.close(seq, keep=False)
    world.open(context, seq, tokens)
    while (n_missing := n_before - context.n_committed(seq)) > 0:
        ok(context.step([(seq, min(CHUNK, n_missing))]))
    return polls


def share_with_a_neighbour(world: World) -> tuple[Any, Any]:
    """Sequence 1 decodes on cells that it shares with 0, whose prompt goes on; returns the context and 0's flag."""
    context = world.context(checkpoint_interval=CHUNK)
    flag = world.open(context, 0, PROMPT)
    for _ in range(2):
        ok(context.step([(0, CHUNK)]))
    assert context.share_prefix(0, 1, 2 * CHUNK, max_bytes=1 << 30)
    world.open(context, 1, [*PROMPT[: 2 * CHUNK], 5])
    ok(context.step([(1, 1)]))
    return context, flag


@pytest.mark.parametrize("kind", ["attention", "sliding-window"])
def test_who_shares_the_cells_of_an_aborted_sequence_does_not_notice(make_world: WorldMaker, kind: str) -> None:
    """At every node; other memories share nothing between live sequences.

    After the abort it computes alone, so what it is compared with does: in company another kernel may multiply.
    """
    world = make_world(f"real {kind}")
    context, flag = share_with_a_neighbour(world)
    polls = context.step([(1, 1), (0, CHUNK)]).polls
    context, flag = share_with_a_neighbour(world)
    for _ in range(2):
        ok(context.step([(1, 1)]))
    expected = logits(context, 1)
    for node in range(1, polls + 1):
        context, flag = share_with_a_neighbour(world)
        context.raise_at(node, flag)
        assert context.step([(1, 1), (0, CHUNK)], **ALWAYS_ABORT).status is StepStatus.ABORTED
        assert (context.n_committed(0), context.n_committed(1)) == (2 * CHUNK, 2 * CHUNK + 1)
        context.close(0, keep=node % 2 == 0)
        for _ in range(2):
            ok(context.step([(1, 1)]))
        np.testing.assert_array_equal(logits(context, 1), expected)


def test_no_position_is_ever_shifted() -> None:
    """An abort while a shift of positions is pending is lost, and the shift made twice: so nothing asks for one."""
    sources = "".join(path.read_text() for path in NATIVE.rglob("*") if path.suffix in {".cpp", ".hpp", ".pyx", ".pxd"})
    assert "llama_memory_seq_rm" in sources, "this is where the memory is used"
    assert not re.findall(r"llama_memory_seq_(?:add|div)", sources)


@pytest.mark.parametrize("kind", REAL)
def test_a_cancel_at_the_last_node_leaves_what_one_at_the_first_does(make_world: WorldMaker, kind: str) -> None:
    """llama.cpp has computed everything, and says that it was aborted all the same."""
    world = make_world(f"real {kind}")
    kept, rows = [], []
    for last in (False, True):
        context = world.context(checkpoint_interval=CHUNK)
        world.open(context, 0, PROMPT)
        ok(context.step([(0, CHUNK)]))
        node = n_nodes(world, context, 0, CHUNK) if last else 1
        context.close(0, keep=True)
        context.raise_at(node, world.open(context, 0, PROMPT))
        result = context.step([(0, CHUNK)], **ALWAYS_ABORT)
        assert (result.status, result.polls) == (StepStatus.ABORTED, node)
        kept.append(context.n_committed(0))
        context.close(0, keep=True)
        world.open(context, 0, PROMPT)
        while context.n_committed(0) < len(PROMPT):
            ok(context.step([(0, min(CHUNK, len(PROMPT) - context.n_committed(0)))]))
        rows.append(logits(context, 0))
    assert kept == [CHUNK, CHUNK]
    np.testing.assert_array_equal(*rows)


def test_a_flag_that_is_raised_too_late_for_its_step_does_not_reach_the_next(real_world: World) -> None:
    context = real_world.context()
    flag = real_world.open(context, 0, PROMPT)
    real_world.open(context, 1, OTHER)
    context.raise_at(1_000_000, flag)
    ok(context.step([(0, CHUNK)]))
    flag.set()
    assert real_world.run(context, 1, 5) == real_world.alone(OTHER, 5)


def prefill(world: World, context: Any, seq: int, tokens: list[int]) -> None:
    world.open(context, seq, tokens)
    while (n_left := len(tokens) - context.n_committed(seq)) > 0:
        ok(context.step([(seq, min(CHUNK, n_left))]))


def test_behind_its_window_a_prefix_cannot_be_shared_although_it_has_a_checkpoint(make_world: WorldMaker) -> None:
    """A checkpoint is of one sequence: another that got only the cells would look back at overwritten ones."""
    world = make_world("real sliding-window")
    context = world.context(checkpoint_interval=CHUNK)
    overwrite_behind_the_window(world, context)
    assert context.common_prefixes(PROMPT[: 2 * CHUNK + 1])[0] == 2 * CHUNK
    assert not context.share_prefix(0, 3, 2 * CHUNK, max_bytes=1 << 30)
    assert context.n_committed(3) == 0


def overwrite_behind_the_window(world: World, context: Any) -> None:
    """Overwrite cells of PROMPT on sequence 0: the window is 32 tokens, and room is looked for from the first cell."""
    prefill(world, context, 1, OTHER * 3)
    prefill(world, context, 0, PROMPT)
    context.close(1, keep=False)
    prefill(world, context, 2, OTHER * 5)


@pytest.mark.parametrize("interval", [0, CHUNK])
def test_behind_its_window_a_sequence_goes_on_from_a_checkpoint_or_anew(make_world: WorldMaker, interval: int) -> None:
    world = make_world("real sliding-window")
    context = world.context(checkpoint_interval=interval)
    overwrite_behind_the_window(world, context)
    context.close(0, keep=True)
    changed = [*PROMPT[:60], *OTHER]
    assert context.common_prefixes(changed)[0] == (0 if interval == 0 else 2 * CHUNK)
    world.open(context, 0, changed)
    assert world.run(context, 0, 4) == world.alone(changed, 4)
