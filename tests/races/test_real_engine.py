"""The cases that matter most, on the compiled engine: temperature 0, survivors compared with a run alone."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.model_loading import generation_on
from pyllmcancel.events import Ending, FinishReason
from pyllmcancel.requests.observer import Observer, StepRecord
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Bound
from tests.races.answers import Answer, answer_of
from tests.races.real import ReadInLoop, Real, check_and_close
from tests.support.device import load_model
from tests.support.driver import RecordingSink, in_thread
from tests.support.marks import mostly_long
from tests.support.step_gate import TEST_LIMIT

LONG = [(13 * n + 7) % 900 for n in range(300)]
MEMORIES = ("attention", "divided", "own cells", "hybrid")
KINDS = (*MEMORIES, *(f"{memory}, ahead" for memory in MEMORIES))


@pytest.fixture
def make_real(model_files: dict[str, Path]) -> Iterator[Callable[..., Real]]:
    made: list[Real] = []

    def make(kind: str = "attention", **config: Any) -> Real:
        kind, _, ahead = kind.partition(", ")
        config["steps_ahead"] = bool(ahead)
        if kind in ("divided", "own cells"):
            config["kv_unified"] = False if kind == "divided" else None
            kind = "attention"
        made.append(Real(model_files[kind], **config))
        return made[-1]

    yield make
    check_and_close(made)


def alone(make_real: Callable[..., Real], kind: str, prompt: list[int], max_tokens: int, **options: Any) -> Answer:
    """Without steps ahead, which change no token."""
    real = make_real(kind.partition(",")[0])
    request = real.submit(prompt, max_tokens=max_tokens, n_logprobs=2, **options)
    real.tokens(request)
    return answer_of(real.sinks[request.id])


@pytest.mark.parametrize("n", [1, 3])
def test_of_ten_requests_of_one_key_nine_are_superseded_and_one_queues(make_real: Callable[..., Real], n: int) -> None:
    """TabbyAPI's case."""
    real = make_real()
    requests = []
    for _ in range(10):
        requests.append(real.submit(LONG, supersede="editor", n=n))
        counts = real.engine.counts()
        assert counts.waiting + counts.running <= 1
    endings = [request.ended.result(TEST_LIMIT) for request in requests]
    assert [ending.cancel_reason for ending in endings] == [CancelReason.SUPERSEDED] * 9 + [None]
    assert [request.superseded_by for request in requests] == [request.id for request in requests[1:]] + [None]
    expected = alone(make_real, "attention", LONG, 8)
    assert all(expected.is_whole(real.tokens(requests[-1], index)) for index in range(n))


@pytest.mark.parametrize("kind", mostly_long(KINDS, "attention"))
def test_two_hundred_clients_that_leave_the_queue_harm_no_decoding(make_real: Callable[..., Real], kind: str) -> None:
    """ik_llama's case."""
    real = make_real(kind, parallel=1)
    steps = threading.Semaphore(0)
    real.watcher.on_step_done = lambda _: steps.acquire(timeout=TEST_LIMIT)
    decoding = real.submit(LONG[:20], max_tokens=250)
    for _ in range(200):
        queued = real.submit(LONG)
        assert real.engine.cancel(queued, CancelReason.DISCONNECT)
        # Without a step: by this thread, or by the engine's if that was just looking for whom to admit.
        queued.ended.result(TEST_LIMIT)
        steps.release()  # one step of the decoding request for each that leaves
    assert not decoding.ended.done()
    real.watcher.on_step_done = lambda _: None
    steps.release()
    assert alone(make_real, kind, LONG[:20], 250).is_whole(real.tokens(decoding))
    assert {entry[0] for record in real.watcher.steps for entry in record.sequences} == {decoding.id}
    assert {record.status for record in real.watcher.steps} == {"ok"}


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_one_batch_leave_it_in_the_step_that_ends_each(make_real: Callable[..., Real], kind: str) -> None:
    """The batch case."""
    real = make_real(kind)
    lengths = (5, 20, 60)
    requests = [real.submit(LONG[start : start + 30], max_tokens=n) for start, n in enumerate(lengths)]
    for start, (request, n_tokens) in enumerate(zip(requests, lengths, strict=True)):
        assert alone(make_real, kind, LONG[start : start + 30], n_tokens).is_whole(real.tokens(request))
        steps = [r for r in real.watcher.steps if request.id in {entry[0] for entry in r.sequences}]
        assert sum(record.n_tokens > 0 for record in steps) >= n_tokens
    last = {entry[0] for entry in real.watcher.steps[-1].sequences}
    assert last == {requests[-1].id}, "the engine is idle when the last one ends"


@pytest.mark.parametrize("kind", [*KINDS, "recurrent", "sliding-window"])
def test_neighbours_of_cancelled_prefills_get_their_tokens_alone(make_real: Callable[..., Real], kind: str) -> None:
    real = make_real(kind)
    survivor = real.submit(LONG[:40], max_tokens=150)
    victims: list[Request] = []
    cancelled = threading.Semaphore(0)

    def cancel_newest(_record: object) -> None:
        if victims and not victims[-1].cancellation.requested:
            real.engine.cancel(victims[-1])
            cancelled.release()

    # Known before the first of their steps, which none of them survives: not even if this thread is late.
    real.watcher.on_added = victims.append
    real.watcher.on_step_done = cancel_newest
    for number in range(10):
        real.submit([number, *LONG])
        assert cancelled.acquire(timeout=TEST_LIMIT)
    real.watcher.on_added = lambda _: None
    assert alone(make_real, kind, LONG[:40], 150).is_whole(real.tokens(survivor))
    assert {victim.ended.result(TEST_LIMIT).finish_reason for victim in victims} == {FinishReason.CANCELLED}


@pytest.mark.parametrize("kind", ["own cells", "own cells, ahead"])
def test_one_moved_into_a_cancelled_neighbours_place_is_as_alone(make_real: Callable[..., Real], kind: str) -> None:
    real = make_real(kind)
    requests: list[Request] = []
    n_steps = count()

    def leave_a_gap(record: StepRecord) -> None:
        if len(record.sequences) == 3 and next(n_steps) == 3:
            real.engine.cancel(requests[1])

    real.watcher.on_added = requests.append
    real.watcher.on_step_done = leave_a_gap
    for start in range(3):
        real.submit(LONG[start : start + 30], max_tokens=300, ignore_eos=True)
    for start in (0, 2):
        expected = alone(make_real, kind, LONG[start : start + 30], 300, ignore_eos=True)
        assert expected.is_whole(real.tokens(requests[start]))
    assert real.engine.workload.scheduler.n_moved > 0


def cancel_after(real: Real, n_steps: int) -> list[Request]:
    """Have the engine's thread, which cannot be late, cancel the next request after `n_steps` steps of it.

    Return a list that has this request when it is submitted.
    """
    submitted: list[Request] = []
    numbers = count(1)

    def count_down(record: StepRecord) -> None:
        if submitted[0].id in {entry[0] for entry in record.sequences} and next(numbers) == n_steps:
            real.engine.cancel(submitted[0])

    real.watcher.on_added = submitted.append
    real.watcher.on_step_done = count_down
    return submitted


@pytest.mark.parametrize("kind", KINDS)
def test_a_retried_cancelled_prompt_gets_the_tokens_of_a_fresh_one(make_real: Callable[..., Real], kind: str) -> None:
    real = make_real(kind)
    for n_steps in range(1, 4):
        submitted = cancel_after(real, n_steps)
        real.submit(LONG)
        (request,) = submitted
        assert request.ended.result(TEST_LIMIT).cancel_reason is CancelReason.EXPLICIT
    assert alone(make_real, kind, LONG, 8).is_whole(real.tokens(real.submit(LONG)))


class StormClient:
    """Submits, reads for a while, cancels most of what it submits, and checks every answer."""

    def __init__(self, real: Real, seed: int, expected: dict[int, Answer]) -> None:
        self.real, self.expected = real, expected
        self.key, self.random = f"s{seed}", random.Random(seed)
        self.outcomes: Counter[str] = Counter()

    def run(self) -> None:
        for _ in range(25):
            start = self.random.choice(list(self.expected))
            key = self.random.choice([None, self.key])
            request = self.real.submit(LONG[start : start + 70], supersede=key, max_tokens=12)
            if self.random.random() < 0.6:
                self.read(request, self.random.randrange(4))
                self.real.engine.cancel(request)
            self.outcomes[self.check(request, self.expected[start])] += 1

    def read(self, request: Request, count: int) -> None:
        sink = self.real.sinks[request.id]
        for _ in range(count):
            if sink.events.get(timeout=TEST_LIMIT) in sink.endings:
                return

    def check(self, request: Request, expected: Answer) -> str:
        ending, got = request.ended.result(TEST_LIMIT), self.real.tokens(request)
        assert expected.is_begun_by(got)
        assert expected.is_whole(got) or ending.finish_reason is FinishReason.CANCELLED
        assert (ending.finish_reason is FinishReason.CANCELLED) == request.cancellation.requested
        return ending.finish_reason


@pytest.mark.parametrize("kind", mostly_long(KINDS, "attention"))
def test_a_storm_of_cancels_by_many_threads_hits_only_its_targets(make_real: Callable[..., Real], kind: str) -> None:
    real = make_real(kind, max_queue=1000)
    expected = {start: alone(make_real, kind, LONG[start : start + 70], 12) for start in range(4)}
    clients = [StormClient(real, seed, expected) for seed in range(4)]
    with ExitStack() as running:
        for client in clients:
            running.enter_context(in_thread(client.run))
    outcomes = sum((client.outcomes for client in clients), Counter())
    assert outcomes.total() == 100
    assert min(outcomes[FinishReason.CANCELLED], outcomes[FinishReason.LENGTH]) > 10


@pytest.mark.parametrize("kind", mostly_long(KINDS, "attention"))
@pytest.mark.parametrize("n", [1, 3])
def test_what_gives_way_to_another_owner_has_the_same_tokens(make_real: Callable[..., Real], kind: str, n: int) -> None:
    prompts = [[*LONG[: 60 + first], first] for first in range(3)]
    expected = [alone(make_real, kind, prompt, 24) for prompt in prompts]
    real = make_real(kind, parallel=3)
    submitted, others = threading.Event(), list[Request]()

    def submit_others(record: StepRecord) -> None:
        assert submitted.wait(TEST_LIMIT)
        if len(record.sequences) == 3 and len(others) < 2:
            others.append(real.submit(LONG[::-1], owner="other", max_tokens=4))

    real.watcher.on_step_done = submit_others
    requests = [real.submit(prompt, owner="many", max_tokens=24, n=n) for prompt in prompts]
    submitted.set()
    for request, answer_alone in zip(requests, expected, strict=True):
        assert all(answer_alone.is_whole(real.tokens(request, index)) for index in range(n))
    assert real.engine.workload.scheduler.n_preempted > 0
    for other in others:
        assert alone(make_real, kind, LONG[::-1], 4).is_whole(real.tokens(other))


@pytest.mark.parametrize("kind", mostly_long(KINDS, "attention"))
@pytest.mark.parametrize("n", [1, 2])
def test_what_pauses_repeatedly_goes_on_with_the_same_tokens(make_real: Callable[..., Real], kind: str, n: int) -> None:
    """Five readers that read the next token when their request has paused, on three slots; a sixth one leaves."""
    prompts = [LONG[first : first + 40] for first in range(5)]
    expected = [alone(make_real, kind, prompt, 24) for prompt in prompts]
    real = make_real(kind, parallel=3)

    async def read(prompt: list[int], *, leaves: bool = False) -> Request:
        sink = ReadInLoop(Bound(1, 0, real.engine.registry.wake))
        # The leaver has many tokens left, however far the engine is ahead of a busy event loop.
        request = real.submit(prompt, reader=sink, max_tokens=500 if leaves else 24, n=n)
        for n_read in count():
            while not (request.paused or request.ended.done()):  # noqa: ASYNC110 - a pause is no event here
                await asyncio.sleep(0)
            if leaves and n_read == 5:
                real.engine.cancel(request, CancelReason.STALLED)
            if isinstance(await sink.get(), Ending):
                return request
        raise AssertionError("an answer has an end")

    async def main() -> list[Request]:
        return await asyncio.gather(*map(read, prompts), read(LONG[50:90], leaves=True))

    *requests, left = asyncio.run(main())
    assert left.ended.result(TEST_LIMIT).cancel_reason is CancelReason.STALLED
    for request, answer_alone in zip(requests, expected, strict=True):
        assert all(answer_alone.is_whole(real.tokens(request, index)) for index in range(n))


@pytest.mark.parametrize("kind", ["attention", "hybrid", "recurrent"])
def test_a_preempted_choice_goes_on_from_its_cells_with_one_slot_too(model_files: dict[str, Path], kind: str) -> None:
    config = EngineConfig(parallel=1, ctx_size=1024, steps_ahead=False)  # each step is taken here
    generation = generation_on(load_model(model_files[kind]), config, _native)
    params = generation_params(temperature=0.0, max_tokens=8)
    background, interactive = generation.request(priority=-1), generation.request(priority=1)
    for request, prompt in ((background, LONG), (interactive, LONG[::-1])):
        generation.fill(request, [prompt], params, RecordingSink())

    def compute_until(reached: Callable[[], bool]) -> None:
        while not reached():
            items, _ = generation.plan(Observer())
            generation.take(generation.steps.compute(items).rows, Observer())

    (waiting,), (urgent,) = background.choices, interactive.choices
    generation.start(background, Observer())
    compute_until(lambda: len(waiting.generated) == 3)
    assert generation.scheduler.choose([interactive]) is interactive
    generation.start(interactive, Observer())
    assert waiting.seq is None
    compute_until(lambda: urgent.finish_reason is not None)
    generation.plan(Observer())
    assert (waiting.seq is not None, waiting.n_pending) == (True, 1)
