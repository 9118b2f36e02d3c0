"""The loop of a model that pools, on the verified fake: what shares a step, and what a cancel does to it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.embeddings.request import Embedded
from pyllmcancel.embeddings.workload import Embedding
from pyllmcancel.engine.engine import Engine
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.pooling import Pooling
from pyllmcancel.requests.request import IDLE, Request
from pyllmcancel.scheduling.scheduler import Occupancy
from pyllmcancel.step import StepStatus
from tests.support import fake_embedder
from tests.support.driver import RecordingSink, Watcher
from tests.support.step_gate import TEST_LIMIT


class Rig:
    """An engine that embeds; its steps wait until the test lets them through."""

    def __init__(
        self, kind: str = "none", pooling: Pooling = Pooling.MEAN, *, gpu: bool = False, parallel: int = 2, **sizes: int
    ) -> None:
        model = fake_embedder.Model(kind, gpu=gpu)
        sizes = {"n_ctx": 256, "n_batch": 32} | sizes
        self.embedder = fake_embedder.Embedder(model, n_seq_max=8, n_threads=1, pooling=pooling, **sizes)
        self.embedder.step_cost = (0.0, 1.0)
        self.gate = self.embedder.gate
        self.gate.hold()
        self.watcher = Watcher()
        settings = EngineConfig(parallel=parallel, max_step_seconds=1e9)
        self.engine = Engine(Embedding(self.embedder, settings, fake_embedder), observer=self.watcher)
        self.sinks: dict[str, RecordingSink] = {}

    def submit(self, *texts: Sequence[int], **options: Any) -> Request:
        sink = RecordingSink()
        request = self.engine.submit_texts(texts, sink, **options)
        self.sinks[request.id] = sink
        return request

    def held(self) -> list[tuple[int, int]]:
        """Wait for a step: the text and the tokens of each part. (A text is known by its first token.)"""
        step = self.gate.wait_held()
        return [(self.embedder._texts[item.seq].tokens[0], item.n_tokens) for item in step.items]

    def step(self) -> None:
        self.gate.wait_held()
        self.gate.let_through()

    def finish(self) -> None:
        self.gate.open()
        assert self.engine.registry.wait_until_empty(TEST_LIMIT)

    def vectors(self, request: Request) -> dict[int, np.ndarray]:
        deltas = self.sinks[request.id].deltas
        return {delta.index: delta.embedding for delta in deltas if isinstance(delta, Embedded)}

    def check_complete(self, request: Request, *texts: Sequence[int]) -> None:
        ending = self.sinks[request.id].ending()
        assert ending.finish_reason is FinishReason.STOP
        assert ending.usage.prompt_tokens == sum(map(len, texts))
        found = self.vectors(request)
        assert sorted(found) == list(range(len(texts)))
        for index, tokens in enumerate(texts):
            np.testing.assert_array_equal(found[index], fake_embedder.embedding_of(tokens))

    def close(self) -> None:
        self.gate.open()
        self.engine.close()
        assert self.engine.failure is None
        assert self.embedder.open_seqs == []
        assert self.engine.counts() == (0, 0, 0, 0)
        assert self.engine.occupancy() == Occupancy()
        assert all(len(sink.endings) == 1 for sink in self.sinks.values())
        assert all(sink.record[-1] is sink.endings[0] for sink in self.sinks.values())
        assert sorted(name for name, _ in self.watcher.endings) == sorted(self.sinks)


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*args: Any, **options: Any) -> Rig:
        rigs.append(Rig(*args, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()


def text(first: int, n_tokens: int) -> list[int]:
    return [first] * n_tokens


def test_each_text_gets_its_vector_whichever_step_computes_it(rig: Rig) -> None:
    texts = [text(n, 1 + 5 * n) for n in range(7)]
    request = rig.submit(*texts)
    rig.finish()
    rig.check_complete(request, *texts)
    assert len(rig.watcher.steps) > 1


def test_requests_take_turns_so_that_many_texts_do_not_keep_one_waiting(rig: Rig) -> None:
    many = [text(100 + n, 10) for n in range(20)]
    first = rig.submit(*many)
    rig.held()
    second = rig.submit(text(1, 10), text(2, 10))
    rig.step()
    assert rig.held() == [(103, 10), (1, 10), (104, 10)]
    rig.step()
    assert rig.held() == [(2, 10), (105, 10), (106, 10)]
    rig.step()
    rig.held()
    rig.check_complete(second, text(1, 10), text(2, 10))
    assert not first.ended.done()
    rig.finish()
    rig.check_complete(first, *many)


def test_a_cancel_ends_a_request_that_the_running_step_does_not_compute(rig: Rig) -> None:
    first = rig.submit(text(1, 30), text(2, 30))
    rig.held()
    beside = rig.submit(text(3, 30))
    rig.step()
    assert rig.held() == [(2, 30)] or rig.held() == [(3, 30)]
    other, texts = (beside, 0) if rig.held() == [(2, 30)] else (first, 30)
    rig.engine.cancel(other)
    assert other.ended.done()
    assert rig.sinks[other.id].ending().usage.prompt_tokens == texts
    rig.finish()


def test_owners_take_turns_however_many_requests_each_has(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(parallel=3)
    rig.submit(text(1, 32), owner="many")
    rig.held()
    for first in (10, 20, 30):
        rig.submit(*(text(first + n, 10) for n in range(9)), owner="many")
    rig.step()
    assert rig.held() == [(10, 10), (20, 10), (30, 10)]
    rig.submit(*(text(100 + n, 10) for n in range(4)), owner="other")
    rig.step()
    assert rig.held() == [(100, 10), (11, 10), (101, 10)], "it needs none of the three places"
    rig.step()
    assert rig.held() == [(21, 10), (102, 10), (31, 10)]
    rig.finish()


def test_an_owner_that_has_fewer_requests_admitted_is_next(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(parallel=2)
    rig.submit(*(text(10 + n, 30) for n in range(9)), owner="many")
    rig.held()
    rig.submit(text(20, 30), owner="many")
    rig.submit(text(1, 30), text(2, 30), owner="other")
    third = rig.submit(text(3, 30), owner="other")
    rig.step()
    assert rig.held() == [(1, 30)]
    assert third.status is RequestStatus.WAITING
    rig.step()
    assert rig.held() == [(11, 30)]
    rig.finish()


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_owners_have_equal_shares_of_a_step_for_their_long_texts(make_rig: Callable[..., Rig], kind: str) -> None:
    rig = make_rig(kind=kind, pooling=Pooling.LAST, parallel=4, n_ctx=1024)
    rig.submit(text(9, 32))
    rig.held()
    for first in (1, 2, 3):
        rig.submit(text(first, 120), owner="many")
    rig.submit(text(100, 120), owner="other")
    rig.step()
    while len(rig.held()) < 4 or any(n_tokens == 16 for first, n_tokens in rig.held() if first < 100):
        rig.step()
    assert sorted(rig.held()) == [(1, 6), (2, 5), (3, 5), (100, 16)]
    rig.finish()


@pytest.mark.parametrize(("gpu", "n_texts"), [(False, 2), (True, 6)])
def test_on_a_gpu_the_first_step_is_as_large_as_any(make_rig: Callable[..., Rig], *, gpu: bool, n_texts: int) -> None:
    rig = make_rig(n_batch=256, gpu=gpu)
    rig.submit(*(text(1 + n, 30) for n in range(6)))
    assert len(rig.held()) == n_texts
    rig.finish()


def test_a_text_that_does_not_fit_is_first_in_the_next_step(rig: Rig) -> None:
    rig.submit(text(1, 20), text(2, 20), text(3, 5))
    assert rig.held() == [(1, 20)]
    rig.step()
    assert rig.held() == [(2, 20), (3, 5)]
    rig.finish()


def held_together(rig: Rig, *texts: list[int]) -> list[Request]:
    """Submit requests of a text each, whose steps have a known cost, and wait for the one that they share."""
    warm = rig.submit(text(9, 4))
    rig.step()
    warm.ended.result(TEST_LIMIT)
    rig.submit(text(8, 30))
    rig.held()
    requests = [rig.submit(one) for one in texts]
    rig.step()
    assert rig.held() == [(one[0], len(one)) for one in texts]
    return requests


def test_a_neighbour_in_the_aborted_step_gets_its_vector_in_the_next(rig: Rig) -> None:
    victim, neighbour = held_together(rig, text(1, 20), text(7, 4))
    rig.engine.cancel(victim)
    assert victim.ended.result(TEST_LIMIT).finish_reason is FinishReason.CANCELLED
    assert rig.held() == [(7, 4)]
    rig.finish()
    rig.check_complete(neighbour, text(7, 4))
    assert [record.status for record in rig.watcher.steps] == ["ok", "ok", "aborted", "ok"]


def test_a_step_that_is_not_worth_aborting_is_finished_for_the_neighbour_alone(rig: Rig) -> None:
    victim, neighbour = held_together(rig, text(1, 4), text(7, 20))
    rig.gate.move_on(0.5)
    rig.engine.cancel(victim)
    rig.step()
    assert victim.ended.result(TEST_LIMIT).finish_reason is FinishReason.CANCELLED
    assert rig.vectors(victim) == {}
    rig.check_complete(neighbour, text(7, 20))
    assert rig.watcher.steps[-1].spared


@pytest.mark.parametrize("of_the_step", [False, True])
def test_one_text_at_fault_fails_its_request_alone(rig: Rig, *, of_the_step: bool) -> None:
    """Its numbers are none, or the step fails, and is repeated text by text."""
    if of_the_step:
        rig.embedder.faults[1, 1] = StepStatus.FAILED_COMPUTE
    else:
        rig.embedder.faulty.add((1, 1, 1))
    rig.submit(text(8, 30))
    rig.held()
    good, bad = rig.submit(text(2, 4), text(4, 4)), rig.submit(text(1, 3), text(3, 4))
    rig.finish()
    ending = bad.ended.result(TEST_LIMIT)
    assert ending.finish_reason is FinishReason.ERROR
    assert of_the_step or "text 0" in ending.error
    rig.check_complete(good, text(2, 4), text(4, 4))


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_a_long_text_in_parts_leaves_others_half_of_each_step(make_rig: Callable[..., Rig], kind: str) -> None:
    rig = make_rig(kind, Pooling.LAST)
    long = rig.submit(text(1, 100))
    rig.held()
    short = rig.submit(text(2, 8), text(3, 30))
    rig.step()
    assert rig.held() == [(2, 8), (3, 8), (1, 16)]
    rig.step()
    rig.held()
    rig.finish()
    rig.check_complete(long, text(1, 100))
    rig.check_complete(short, text(2, 8), text(3, 30))


def test_texts_whose_cells_are_not_there_wait(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("attention", Pooling.LAST, n_ctx=128)
    first, second = rig.submit(text(1, 100)), rig.submit(text(2, 60))
    while not first.ended.done():
        assert len(rig.held()) == 1
        rig.step()
        if rig.held()[0][0] == 2:
            break
    rig.finish()
    rig.check_complete(first, text(1, 100))
    rig.check_complete(second, text(2, 60))


def test_a_step_without_room_begins_its_newest_text_again_later(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("attention", Pooling.LAST)
    rig.embedder.next_status.extend([StepStatus.OK, StepStatus.NO_ROOM])
    blocker = rig.submit(text(8, 32))
    rig.held()
    first, second = rig.submit(text(1, 10)), rig.submit(text(2, 10))
    rig.finish()
    for request, one in ((blocker, text(8, 32)), (first, text(1, 10)), (second, text(2, 10))):
        rig.check_complete(request, one)
    assert [record.status for record in rig.watcher.steps][:2] == ["ok", "no_room"]


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
def test_idle_texts_give_way_and_their_places(make_rig: Callable[..., Rig], pooling: Pooling) -> None:
    rig = make_rig("attention", pooling, parallel=1)
    texts = [[1] * 20, [2] * 20]
    idle = rig.submit(*texts, priority=IDLE)
    assert {first for first, _ in rig.held()} <= {1, 2}
    other = rig.submit([3] * 10, owner="another")
    assert rig.held() == [(3, 10)]
    assert (idle.paused, rig.engine.cancel(rig.submit([4], priority=IDLE))) == (True, True)
    rig.finish()
    rig.check_complete(other, [3] * 10)
    rig.check_complete(idle, *texts)
