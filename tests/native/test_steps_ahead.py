"""Steps ahead of the compiled core: aborted at any node, beside Python's threads, in a context that goes away."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.errors import ContextBusy
from pyllmcancel.step import StepStatus
from tests.native.conftest import REAL, World, ok
from tests.native.test_contract_ahead import PROMPTS, begin, begun, generate, generate_apart, two_begun
from tests.support.device import EVERY_NODE, STOPPABLE

SWEPT = (1, 2, 3, 5, 8, 13, 21, 34, 40)  # the smallest of these models' graphs has 45 nodes
KINDS: dict[str, dict[str, Any]] = {key: {} for key in REAL} | {"divided": {"kv_unified": False}, "cuts": EVERY_NODE}


def world_of(make_world: Callable[[str], World], kind: str) -> tuple[World, dict[str, Any]]:
    memory = kind if kind in REAL else "attention"
    return make_world(f"real {memory}"), STOPPABLE | KINDS[kind]


@pytest.mark.parametrize("node", SWEPT)
@pytest.mark.parametrize("kind", KINDS)
def test_after_an_abort_of_the_step_ahead_the_sequence_goes_on_as_if_nothing_had_been(
    make_world: Callable[[str], World], kind: str, node: int
) -> None:
    world, options = world_of(make_world, kind)
    context, other = world.context(**options), world.context(**options)
    (flag,) = begun(world, context, 1)
    begun(world, other, 1)
    context.raise_at(node, flag, n_later=1)
    tokens = [row.token for row in ok(begin(context, [0]))]
    result = context.collect(goes_on=True)
    assert not result.ahead
    assert (result.status, result.polls) == (StepStatus.ABORTED, node)
    # As a preempted request goes on: on the cells that are left, with a flag of its own.
    known = context.tokens(0)
    context.close(0, keep=True)
    world.open(context, 0, known)
    assert [*tokens, *world.run(context, 0, 5)] == generate_apart(other, [0], 6)[0]


@pytest.mark.parametrize("node", SWEPT[::2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_in_a_step_ahead_costs_nobody_tokens(make_world: Callable[[str], World], kind: str, node: int) -> None:
    world, options = world_of(make_world, kind)
    context, other = world.context(**options), world.context(**options)
    flags = begun(world, context, 3)
    begun(world, other, 3)
    context.raise_at(node, flags[1], n_later=2)
    results = [begin(context, [0, 1, 2]), context.collect(goes_on=True), context.collect(goes_on=True)]
    assert not results[-1].ahead
    expected = generate_apart(other, [0, 1, 2], 8)
    context.close(1, keep=True)
    for seq in (0, 2):
        got = [row.token for result in results for row in result.rows if row.seq == seq]
        got += generate(context, [seq], 8 - len(got))[seq]
        assert got == expected[seq]
    last = [row.token for row in results[-1].rows if row.seq == 1]
    assert last in ([], [-1]), "nobody waits for its token"


def test_python_runs_while_a_step_ahead_is_waited_for(slow_world: World, no_preemption: None) -> None:
    """With no preemption this thread gets on only because the one that waits has released the GIL."""
    context = slow_world.context()
    begun(slow_world, context, 1)
    assert begin(context, [0]).ahead
    for _attempt in range(100):
        refused = []
        thread = threading.Thread(target=lambda refused=refused: refused.append(is_refused(context)))
        thread.start()
        refused.append(is_refused(context))
        thread.join()
        if any(refused):
            context.collect(goes_on=False)
            return
    raise AssertionError("no thread ever ran beside one that waits")


def is_refused(context: Any) -> bool:
    """Return whether another thread is waiting for the step ahead; if not, this one waits."""
    try:
        context.collect(goes_on=True)
    except ContextBusy:
        return True
    return False


def test_the_thread_waits_for_a_python_that_is_slower_than_a_step(real_world: World) -> None:
    """A step ahead is computed however long nobody comes for it; the one after it is not."""
    context, other = two_begun(real_world, 1)
    tokens = [row.token for row in ok(begin(context, [0]))]
    for _ in range(5):
        ok(other.step([(0, 1)]))  # as long as some steps take
    for goes_on in (True, False):
        tokens += [row.token for row in ok(context.collect(goes_on=goes_on))]
    assert tokens == other.tokens(0)[len(PROMPTS[0]) + 1 :][:3]
    assert context.n_committed(0) == len(PROMPTS[0]) + 3


def test_a_context_may_go_away_while_a_step_is_ahead(real_world: World) -> None:
    for _ in range(10):
        context = real_world.context()
        begun(real_world, context, 2)
        assert begin(context, [0, 1]).ahead
        del context


def test_contexts_run_ahead_at_the_same_time(real_world: World) -> None:
    contexts = [real_world.context() for _ in range(3)]
    for context in contexts:
        begun(real_world, context, 1)
    *ahead, apart = contexts
    results = [[begin(context, [0])] for context in ahead]
    for number in range(5):
        for context, got in zip(ahead, results, strict=True):
            got.append(context.collect(goes_on=number < 4))
    expected = generate_apart(apart, [0], 6)[0]
    for got in results:
        assert [row.token for result in got for row in ok(result)] == expected
