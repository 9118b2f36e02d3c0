"""The compiled core and Python's threads: the GIL is released, a second thread is refused, contexts share nothing."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from pyllmcancel.errors import ContextBusy
from pyllmcancel.step import StepStatus
from tests.native.conftest import World, ok, step_and_cancel

LONG = [(13 * n + 7) % 900 for n in range(400)]
OTHER = [(11 * n + 5) % 900 for n in range(60)]


def test_another_thread_runs_and_cancels_while_a_step_computes(slow_world: World, no_preemption: None) -> None:
    """With no preemption this thread gets to raise the flag only because the step releases the GIL."""
    for _attempt in range(20):
        context = slow_world.context(n_batch=512)
        result = step_and_cancel(context, [(0, 400)], [slow_world.open(context, 0, LONG)])
        if result.status is StepStatus.ABORTED:
            return
    raise AssertionError("the flag was never raised while a step computed")


class Intruder:
    """Stands where a flag stands, and enters the context instead, until it is refused: the step may not have begun."""

    def __init__(self, context: object) -> None:
        self._context = context
        self.refused = False

    def set(self) -> None:
        for _attempt in range(50):
            try:
                self._context.close(1, keep=True)
            except ContextBusy:
                self.refused = True
                return


def test_a_second_thread_in_a_context_is_refused_and_nothing_is_harmed(slow_world: World, no_preemption: None) -> None:
    """One of two threads that meet is refused, here nearly always the second one."""
    for _attempt in range(20):
        context = slow_world.context(n_batch=512)
        flag, intruder = slow_world.open(context, 0, LONG), Intruder(context)
        result = step_and_cancel(context, [(0, 400)], [intruder, flag])
        assert isinstance(result, ContextBusy) or result.status in {StepStatus.ABORTED, StepStatus.OK}
        context.close(0, keep=True)
        slow_world.open(context, 0, OTHER)
        assert slow_world.run(context, 0, 3) == slow_world.alone(OTHER, 3)
        if intruder.refused:
            return
    raise AssertionError("no second thread was ever refused")


def test_a_contexts_flag_is_not_seen_by_another_that_runs_meanwhile(slow_world: World, no_preemption: None) -> None:
    expected = slow_world.alone(LONG, 1)
    aborted, running = slow_world.context(n_batch=512), slow_world.context(n_batch=512)
    slow_world.open(running, 0, LONG)
    rows: list[object] = []
    thread = threading.Thread(target=lambda: rows.extend(ok(running.step([(0, 400)]))))
    thread.start()
    for _ in range(5):
        slow_world.open(aborted, 0, LONG).set()
        assert aborted.step([(0, 400)]).status is StepStatus.ABORTED
        aborted.close(0, keep=False)
    thread.join()
    assert [row.token for row in rows] == expected


def test_two_contexts_on_one_model_share_nothing(real_world: World) -> None:
    first, second = real_world.context(), real_world.context()
    real_world.open(first, 0, LONG[:100])
    real_world.open(second, 0, OTHER)
    got: dict[object, list[int]] = {first: [], second: []}
    for _ in range(4):
        got[first] += real_world.run(first, 0, 1)
        got[second] += real_world.run(second, 0, 1)
    assert got == {first: real_world.alone(LONG[:100], 4), second: real_world.alone(OTHER, 4)}
    assert (first.n_cells_used, second.n_cells_used) == (103, 63)


def test_logits_keep_their_context_alive(slow_world: World) -> None:
    context = slow_world.computed(OTHER, 60)
    logits = context.logits(0)
    copy = np.array(logits)
    assert np.shares_memory(logits, context.logits(0)), "the array is a copy"
    del context
    np.testing.assert_array_equal(logits, copy)


FORKING = """
import os, sys
from pyllmcancel._native import CancelFlag, Context, Model, Sampler
from pyllmcancel.sampling import SamplingParams

model = Model.load(sys.argv[1])
adapts, ahead = (sys.argv[2] == name for name in ("adapts", "ahead"))
context = Context(model, n_ctx=256, n_seq_max=1, n_batch=64, n_threads=3, adapt_threads=adapts)
context.open(0, [1, 2, 3], Sampler(model, SamplingParams()), CancelFlag())
context.step([(0, 3)])
assert not ahead or context.step([(0, 1)], ends=[(100, ())]).ahead
child = os.fork()
if child == 0:
    del context, model  # must not join threads that this process does not have
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
context.collect(goes_on=False) if ahead else context.step([(0, 1)])
"""


@pytest.mark.parametrize("how", ["", "adapts", "ahead"])
def test_a_forked_child_that_drops_a_context_does_not_hang(slow_world: World, how: str) -> None:
    script = [sys.executable, "-c", FORKING, str(slow_world.path), how]
    run = subprocess.run(script, capture_output=True, text=True, timeout=150, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "7"), run.stderr
