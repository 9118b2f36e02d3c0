"""A cancel at every graph node of a step: the neighbour gets its embedding, and so does the next request."""

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pyllmcancel.errors import ContextBusy
from pyllmcancel.step import StepStatus
from tests.embedding.conftest import EmbedWorld, ok

VICTIM = [(13 * n + 9) % 250 for n in range(60)]
NEIGHBOUR = [(11 * n + 5) % 250 for n in range(12)]
NEXT = [(3 * n + 6) % 250 for n in range(25)]


def n_polls(world: EmbedWorld) -> int:
    embedder = world.embedder()
    world.open(embedder, 0, VICTIM)
    world.open(embedder, 1, NEIGHBOUR)
    return int(embedder.step([(0, 60), (1, 12)]).polls)


class Rig:
    """An embedder that knows how long a step is, and what the neighbour gets: with the victim, and alone."""

    def __init__(self, world: EmbedWorld) -> None:
        self._world = world
        self.embedder = world.embedder()
        self.beside = self._both(0)[1].rows[1].embedding
        self.alone = world.alone(NEIGHBOUR)
        self.next = world.alone(NEXT)

    def _both(self, poll: int) -> Any:
        flag = self._world.open(self.embedder, 0, VICTIM)
        self._world.open(self.embedder, 1, NEIGHBOUR)
        if poll:
            self.embedder.raise_at(poll, flag)
        result = self.embedder.step([(0, 60), (1, 12)], fixed_cost=0.0, cost_per_token=1.0)
        if result.status is StepStatus.ABORTED:
            (again,) = ok(self.embedder.step([(1, 12)]))
        self.embedder.close(0)
        self.embedder.close(1)
        assert self.embedder.n_cells_used == 0
        return (again.embedding if result.status is StepStatus.ABORTED else None), result

    def cancel_at(self, poll: int) -> StepStatus:
        """Cancel the victim at one node; whatever the policy does, the neighbour must get its own, to the bit."""
        redone, result = self._both(poll)
        if result.status is StepStatus.OK:
            assert result.rows[0].embedding is None, "computed for a cancelled request"
            assert result.spared
            np.testing.assert_array_equal(result.rows[1].embedding, self.beside)
        else:
            np.testing.assert_array_equal(redone, self.alone)
        return StepStatus(result.status)

    def check_next(self) -> None:
        self._world.open(self.embedder, 3, NEXT)
        (row,) = ok(self.embedder.step([(3, 25)]))
        self.embedder.close(3)
        np.testing.assert_array_equal(row.embedding, self.next)


def test_a_cancel_at_any_node_harms_neither_the_neighbour_nor_the_next(real_world: EmbedWorld) -> None:
    rig = Rig(real_world)
    found = []
    # On a loaded machine a step of a recurrent model takes milliseconds, and it has hundreds of nodes.
    for poll in range(1, n_polls(real_world) + 1, 1 if rig.embedder.memory_kind in {"none", "attention"} else 7):
        found.append(rig.cancel_at(poll))
        rig.check_next()
    if rig.embedder.memory_kind in {"recurrent", "hybrid"}:
        assert set(found) == {StepStatus.OK}, "an abort would harm the neighbour"
    else:
        assert found[0] is StepStatus.ABORTED
        assert found[-1] is StepStatus.OK, "the rest costs less than the neighbour's part"


def test_a_cancel_of_the_only_text_stops_at_once_and_leaves_nothing(real_world: EmbedWorld) -> None:
    expected = real_world.alone(NEXT)
    embedder = real_world.embedder()
    for poll in range(1, n_polls(real_world) + 1, 3):
        embedder.raise_at(poll, real_world.open(embedder, 0, VICTIM))
        result = embedder.step([(0, 60)])
        if result.status is not StepStatus.ABORTED:
            assert poll > 1, "no abort came in the middle of a step"
            embedder.close(0)
            break
        assert result.polls == poll
        assert embedder.n_cells_used == 0
        embedder.close(0)
        real_world.open(embedder, 0, NEXT)
        (row,) = ok(embedder.step([(0, 25)]))
        embedder.close(0)
        np.testing.assert_array_equal(row.embedding, expected)


@pytest.mark.parametrize("name", ["real decoder last", "real recurrent last", "real hybrid last"])
def test_after_an_abort_a_text_in_parts_goes_on_from_what_is_true(make_embed_world: Any, name: str) -> None:
    """Attention keeps the finished steps; a recurrent state begins again."""
    world = make_embed_world(name)
    expected = world.alone(VICTIM)
    embedder = world.embedder()
    for poll in (1, 7, 20):
        tripwire = world.native.CancelFlag()
        world.open(embedder, 0, VICTIM)
        ok(embedder.step([(0, 30)]))
        embedder.close(0)
        embedder.open(0, VICTIM, tripwire)
        ok(embedder.step([(0, 30)]))
        embedder.raise_at(poll, tripwire)
        assert embedder.step([(0, 30)]).status is StepStatus.ABORTED
        assert embedder.n_committed(0) == (30 if embedder.memory_kind == "attention" else 0)
        assert embedder.n_cells_used == embedder.n_committed(0)
        embedder.close(0)
        world.open(embedder, 0, VICTIM)
        (row,) = ok(embedder.step([(0, 60)]))
        embedder.close(0)
        world.check_same(row.embedding, expected)


def test_a_neighbour_in_the_middle_of_its_text_goes_on_after_an_abort(make_embed_world: Any) -> None:
    world = make_embed_world("real decoder last")
    expected = world.alone(VICTIM)
    found = set()
    for poll in range(1, n_polls(world), 2):
        embedder = world.embedder()
        world.open(embedder, 1, VICTIM)
        ok(embedder.step([(1, 20)]))
        embedder.raise_at(poll, world.open(embedder, 0, NEXT))
        result = embedder.step([(0, 25), (1, 10)])
        found.add(result.status)
        n_left = 40 if result.status is StepStatus.ABORTED else 30
        assert embedder.n_committed(1) == 60 - n_left
        (row,) = ok(embedder.step([(1, n_left)]))
        world.check_same(row.embedding, expected)
    assert StepStatus.ABORTED in found


def retried(call: Callable[[], Any]) -> Any:
    """Call until no other thread is in the embedder."""
    while True:
        with suppress(ContextBusy):
            return call()


def test_a_second_thread_is_refused_while_a_step_computes_and_the_step_is_unharmed(make_embed_world: Any) -> None:
    world = make_embed_world("real encoder mean")
    expected = world.alone(VICTIM)
    embedder = world.embedder()
    refused, done = threading.Event(), threading.Event()

    def intrude() -> None:
        while not (done.is_set() or refused.is_set()):
            try:
                embedder.close(1)
            except ContextBusy:
                refused.set()

    thread = threading.Thread(target=intrude)
    thread.start()
    try:
        for _ in range(2000):
            retried(lambda: world.open(embedder, 0, VICTIM))
            (row,) = ok(retried(lambda: embedder.step([(0, 60)])))
            retried(lambda: embedder.close(0))
            np.testing.assert_array_equal(row.embedding, expected)
            if refused.is_set():
                break
    finally:
        done.set()
        thread.join()
    assert refused.is_set()


FORKING = """
import os, sys
from pyllmcancel._native import CancelFlag, Embedder, Model

model = Model.load(sys.argv[1])
embedder = Embedder(model, n_ctx=128, n_seq_max=1, n_batch=64, n_threads=2)
embedder.open(0, [7, 8, 9], CancelFlag())
embedder.step([(0, 3)])
child = os.fork()
if child == 0:
    del embedder, model  # must not join threads that this process does not have
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
embedder.close(0)
embedder.open(0, [7, 8, 9], CancelFlag())
embedder.step([(0, 3)])
"""


def test_a_forked_child_that_drops_an_embedder_does_not_hang(embedder_files: dict[str, Any]) -> None:
    script = [sys.executable, "-c", FORKING, str(embedder_files["encoder"])]
    run = subprocess.run(script, capture_output=True, text=True, timeout=150, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "7"), run.stderr
