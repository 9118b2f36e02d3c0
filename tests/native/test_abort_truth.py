"""The state after an abort in the middle of a step, on real models: the truth, or nothing.

Where exactly the flag meets the step differs from run to run; what must hold afterwards does not.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from pyllmcancel.step import StepStatus
from tests.native.conftest import World, ok, step_and_cancel

LONG = [(13 * n + 7) % 900 for n in range(400)]
OTHER = [(11 * n + 5) % 900 for n in range(90)]
NODES = (2, 10, 30)
DELAYS = [0, *(300 * 2**n for n in range(10))]
pytestmark = pytest.mark.usefixtures("no_preemption")


def reopen(world: World, context: object, seq: int, tokens: list[int]) -> object:
    context.close(seq, keep=True)
    return world.open(context, seq, tokens)


def logits_afresh(world: World, tokens: list[int], *chunks: int) -> np.ndarray:
    context = world.opened(tokens, n_batch=512)
    for n_tokens in chunks:
        ok(context.step([(0, n_tokens)]))
    return np.array(context.logits(0))


def aborts(world: World, context: object, n_first: int) -> Iterator[int]:
    """Abort the rest of LONG on sequence 0 again and again, each time later; yields the polls until the abort.

    At given nodes first: on a stalled machine the flags of another thread come before a step, or after it.
    """
    world.open(context, 0, LONG)
    ok(context.step([(0, n_first)]))
    for node in NODES:
        flag = reopen(world, context, 0, LONG)
        context.raise_at(node, flag)
        result = context.step([(0, len(LONG) - context.n_committed(0))])
        assert (result.status, result.polls) == (StepStatus.ABORTED, node)
        yield result.polls
    for delay in DELAYS:
        flag = reopen(world, context, 0, LONG)
        n_before = context.n_committed(0)
        result = step_and_cancel(context, [(0, len(LONG) - n_before)], [flag], delay)
        if result.status is StepStatus.OK:
            return  # from here on the flag comes too late
        assert result.status is StepStatus.ABORTED
        yield result.polls


def test_a_prefix_kept_after_an_abort_gives_the_logits_of_one_computed_afresh(slow_world: World) -> None:
    context = slow_world.context(n_batch=512)
    expected = logits_afresh(slow_world, LONG, 100, 300)
    n_polls = []
    for polls in aborts(slow_world, context, 100):
        n_polls.append(polls)
        assert context.n_committed(0) == 100
    reopen(slow_world, context, 0, LONG)
    ok(context.step([(0, 300)]))
    np.testing.assert_array_equal(context.logits(0), expected)
    assert max(n_polls) > 1, "no abort came in the middle of a step"


def test_after_every_abort_the_sequence_goes_on_as_if_nothing_had_been(real_world: World) -> None:
    context = real_world.context(n_batch=512)
    expected = real_world.alone(LONG, 4)
    for _ in aborts(real_world, context, 100):
        reopen(real_world, context, 0, LONG)
        assert real_world.run(context, 0, 4) == expected
        context.close(0, keep=False)
        real_world.open(context, 0, LONG)
        ok(context.step([(0, 100)]))


def test_an_abort_harms_no_sequence_outside_the_batch(real_world: World) -> None:
    """Neither idle prefixes nor open sequences, whatever the kind of memory."""
    context = real_world.context(n_batch=512, n_ctx=1024)
    real_world.open(context, 1, OTHER)
    begun = real_world.run(context, 1, 2)
    real_world.open(context, 2, OTHER[::-1])
    ok(context.step([(2, 50)]))
    context.close(2, keep=True)
    for _ in aborts(real_world, context, 100):
        continue
    assert [*begun, *real_world.run(context, 1, 4)] == real_world.alone(OTHER, 6)
    real_world.open(context, 2, OTHER[::-1])
    assert context.n_committed(2) == 50
    assert real_world.run(context, 2, 4) == real_world.alone(OTHER[::-1], 4)


def test_a_survivor_of_an_aborted_batch_gets_the_logits_it_gets_alone(slow_world: World) -> None:
    """At given nodes: of a step that is not aborted the logits are those of its company, with other last bits."""
    context = slow_world.context(n_batch=512)
    slow_world.open(context, 1, OTHER)
    (first,) = ok(context.step([(1, 90)]))
    expected = logits_afresh(slow_world, [*OTHER, first.token], 90, 1)
    for node in range(1, 60, 5):
        context.raise_at(node, reopen(slow_world, context, 0, LONG))
        result = context.step([(1, 1), (0, 400)])
        assert (result.status, result.polls) == (StepStatus.ABORTED, node)
        assert (context.n_committed(0), context.n_committed(1)) == (0, 90)
    ok(context.step([(1, 1)]))
    np.testing.assert_array_equal(context.logits(1), expected)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_recurrent_memory_is_aborted_only_if_all_of_the_step_are_cancelled(make_world: object, kind: str) -> None:
    world = make_world(f"real {kind}")
    context = world.context(n_batch=512)
    world.open(context, 1, OTHER)
    got = world.run(context, 1, 1)
    for delay in DELAYS[:6]:
        context.drop_cells(0)
        flag = reopen(world, context, 0, LONG)
        result = step_and_cancel(context, [(1, 1), (0, 400)], [flag], delay)
        assert result.status is StepStatus.OK
        got.append(result.rows[0].token)
    assert got == world.alone(OTHER, 7)


def test_chunks_of_any_size_give_the_same_token(real_world: World) -> None:
    expected = real_world.alone(OTHER, 3)
    for size in (1, 7, 64):
        context = real_world.opened(OTHER)
        while (n_left := len(OTHER) - context.n_committed(0)) > 0:
            ok(context.step([(0, min(size, n_left))]))
        assert [context.tokens(0)[-1], *real_world.run(context, 0, 2)] == expected
