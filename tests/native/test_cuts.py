"""Steps that are stopped at cuts of the graph, as on devices without ggml's abort callback; here forced upon the CPU.

A cut after every node makes each of them an abort point; they must be exact for every kind of memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pyllmcancel.step import StepStatus
from tests.native.conftest import World, ok
from tests.support.device import EVERY_NODE, FEWER, ON_DEVICE

ALWAYS_ABORT = {"fixed_cost": -1.0, "cost_per_token": 0.0}  # whatever is left of the step
PROMPT = list(range(5, 69))
HALF = len(PROMPT) // 2
NEIGHBOUR = list(range(40, 60))


class Stage:
    """Half of a prompt on sequence 0, and a neighbour that has got its prompt on 1; set up anew for every cancel."""

    def __init__(self, world: World, **options: Any) -> None:
        self._world = world
        self.context = world.context(**EVERY_NODE | {"checkpoint_interval": 1} | options)

    def set_up(self) -> Any:
        """The flag of sequence 0."""
        for seq in (0, 1):
            self.context.close(seq, keep=False)
        flag = self._world.open(self.context, 0, PROMPT)
        self._world.open(self.context, 1, NEIGHBOUR)
        ok(self.context.step([(1, len(NEIGHBOUR))]))
        ok(self.context.step([(0, HALF)]))
        return flag

    def step(self) -> Any:
        """The other half, beside a token of the neighbour where an abort leaves that as it was."""
        company = [(1, 1)] if self._world.survives_abort else []
        return self.context.step([(0, HALF), *company], **ALWAYS_ABORT)

    def finish(self) -> np.ndarray[Any, Any]:
        """Logits of the neighbour's next token, and of the prompt for a request that comes after the cancelled one."""
        ok(self.context.step([(1, 1)]))
        neighbour = self.context.logits(1).copy()
        self.context.close(0, keep=True)
        self._world.open(self.context, 0, PROMPT)
        ok(self.context.step([(0, HALF)]))
        return np.concatenate([neighbour, self.context.logits(0)])

    def n_nodes(self) -> int:
        self.set_up()
        result = self.step()
        ok(result)
        return int(result.polls)


def test_an_abort_at_any_cut_leaves_the_neighbour_and_the_prefix_as_they_were(real_world: World) -> None:
    stage = Stage(real_world)
    n_nodes = stage.n_nodes()
    stage.set_up()
    expected = stage.finish()
    for node in range(1, n_nodes + 1, 3 * FEWER):
        stage.context.raise_at(node, stage.set_up())
        result = stage.step()
        assert (result.status, result.polls) == (StepStatus.ABORTED, node)
        assert stage.context.n_committed(0) == HALF
        assert np.array_equal(stage.finish(), expected)


def test_an_abort_at_any_cut_leaves_divided_cells_as_they_were(make_world: Callable[[str], World]) -> None:
    # With divided cells each run of sequences is a graph of its own: the victim is alone in the step.
    stage = Stage(make_world("real attention"), kv_unified=False, n_ctx=1024)
    stage.set_up()
    expected = stage.finish()
    for node in range(1, 41, 3 * FEWER):
        stage.context.raise_at(node, stage.set_up())
        assert stage.context.step([(0, HALF)], **ALWAYS_ABORT).status is StepStatus.ABORTED
        assert np.array_equal(stage.finish(), expected)


def test_a_step_is_cut_as_often_as_its_length_demands(make_world: Callable[[str], World]) -> None:
    world = make_world("real attention")
    context = world.opened(PROMPT, cut_seconds=0.25)
    n_nodes = step_of_a_second(context, 0, len(PROMPT)).polls
    # Up from the first node on, which is seen where the first part ends.
    context.raise_at(1, world.open(context, 1, PROMPT))
    result = step_of_a_second(context, 1, len(PROMPT))
    assert result.status is StepStatus.ABORTED
    assert n_nodes // 4 <= result.polls <= n_nodes // 2


def test_a_token_alone_is_not_cut(make_world: Callable[[str], World]) -> None:
    world = make_world("real attention")
    context = world.opened(PROMPT, cut_seconds=0.25)
    ok(step_of_a_second(context, 0, len(PROMPT)))
    context.raise_at(1, world.open(context, 1, PROMPT[:1]))
    result = step_of_a_second(context, 1, 1)
    # The CPU's own callback stops it at that node, which no cut does; of a device's nodes nothing is known.
    assert result.polls == 1 if result.status is StepStatus.ABORTED else ON_DEVICE


def step_of_a_second(context: Any, seq: int, n_tokens: int) -> Any:
    """A step that takes a second, by the gate's cost model."""
    return context.step([(seq, n_tokens)], fixed_cost=1.0, cost_per_token=0.0)
