"""Cells running out, on the compiled engine: preempted requests go on later with the same output, and none fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel import _native
from pyllmcancel._native import Context
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.request import Request
from tests.native.conftest import SAME_TOKENS_IN_COMPANY
from tests.support.device import load_model
from tests.support.driver import RecordingSink, Stop, Watcher
from tests.support.step_gate import TEST_LIMIT
from tests.support.threads import N_THREADS

# Chosen so that in every answer here the likeliest token is 8e-5 of the logits' standard deviation ahead of the next, a
# hundred times what other kernels make of it.
PROMPT = [(19 * n + 7) % 900 for n in range(300)]
KINDS = ("attention", "sliding-window", "recurrent", "hybrid")
CELLS = 256  # the least that llama.cpp gives


class Crowd:
    """An engine whose requests want more cells than there are, and what they get."""

    def __init__(self, path: Path, parallel: int) -> None:
        self.watcher = Watcher()
        sizes = {"n_ctx": CELLS, "n_seq_max": parallel + 2, "n_batch": 64, "n_threads": N_THREADS}
        context = Context(load_model(path), **sizes, **SAME_TOKENS_IN_COMPANY)
        self.engine = Engine(Generation(context, EngineConfig(parallel=parallel), _native), observer=self.watcher)
        self.sinks: dict[str, RecordingSink] = {}

    def submit(self, prompt: list[int], max_tokens: int | None, **options: Any) -> Request:
        sink = RecordingSink()
        params = generation_params(temperature=0.0, max_tokens=max_tokens, **options)
        request = self.engine.submit([prompt], params, sink)
        self.sinks[request.id] = sink
        return request

    def submit_together(
        self, prompts: list[list[int]], max_tokens: int, then: Callable[[], None] = lambda: None
    ) -> list[Request]:
        """One request for each; none computes its second step before all are there, and so they crowd each other.

        `then` is called by the engine's thread after each step.
        """
        stop = Stop()

        def step_done(_record: object) -> None:
            stop.here()
            then()

        self.watcher.on_step_done = step_done
        try:
            return [self.submit(prompt, max_tokens) for prompt in prompts]
        finally:
            stop.go_on()

    def tokens(self, request: Request, index: int = 0) -> list[int]:
        """Return a request's tokens at the end, which must be its whole answer."""
        sink = self.sinks[request.id]
        assert sink.ending().finish_reason is FinishReason.LENGTH
        return sink.tokens(index)

    @property
    def n_preempted(self) -> int:
        return self.engine.workload.scheduler.n_preempted


@pytest.fixture
def crowd(model_files: dict[str, Path]) -> Iterator[Callable[..., Crowd]]:
    """Make crowds; at the end nothing is left of them."""
    made: list[Crowd] = []

    def make(kind: str, parallel: int = 4) -> Crowd:
        made.append(Crowd(model_files[kind], parallel))
        return made[-1]

    yield make
    try:
        for one in made:
            assert one.engine.registry.wait_until_empty(TEST_LIMIT)
            assert (one.engine.counts(), one.engine.failure) == ((0, 0, 0, 0), None)
    finally:
        for one in made:
            one.engine.close()


def alone(crowd: Callable[..., Crowd], kind: str, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """The answers of requests that have an engine to themselves, one after the other."""
    lonely = crowd(kind, parallel=1)
    return [lonely.tokens(lonely.submit(prompt, max_tokens)) for prompt in prompts]


@pytest.mark.parametrize("kind", KINDS)
def test_a_preempted_request_goes_on_with_the_same_output(crowd: Callable[..., Crowd], kind: str) -> None:
    prompts = [PROMPT[start : start + 40] for start in range(4)]
    crowded = crowd(kind)
    requests = crowded.submit_together(prompts, 100)
    got = [crowded.tokens(request) for request in requests]
    assert crowded.n_preempted > 0
    assert {record.status for record in crowded.watcher.steps} <= {"ok", "no_room"}
    assert got == alone(crowd, kind, prompts, 100)


@pytest.mark.parametrize("kind", KINDS)
def test_many_sequences_in_a_tiny_context_all_come_to_their_end(crowd: Callable[..., Crowd], kind: str) -> None:
    prompts = [PROMPT[start : start + 5] for start in range(24)]
    crowded = crowd(kind, parallel=12)
    requests = crowded.submit_together(prompts, 30)
    got = [crowded.tokens(request) for request in requests]
    assert crowded.n_preempted > 0
    assert got == alone(crowd, kind, prompts, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_of_one_prompt_give_way_and_go_on_too(crowd: Callable[..., Crowd], kind: str) -> None:
    crowded = crowd(kind, parallel=3)
    request = crowded.submit(PROMPT[:40], 100, n=3)
    got = [crowded.tokens(request, index) for index in range(3)]
    assert crowded.n_preempted > 0
    assert got == alone(crowd, kind, [PROMPT[:40]], 100) * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_is_not_touched_when_a_preempted_request_is_cancelled(
    crowd: Callable[..., Crowd], kind: str
) -> None:
    crowded = crowd(kind, parallel=2)
    requests: list[Request] = []
    crowded.watcher.on_added = requests.append

    def cancel_once_it_gave_way() -> None:
        if crowded.n_preempted:
            crowded.engine.cancel(requests[1])

    stays, gives_way = crowded.submit_together([PROMPT[:60], PROMPT[60:120]], 150, cancel_once_it_gave_way)
    assert crowded.tokens(stays) == alone(crowd, kind, [PROMPT[:60]], 150)[0]
    assert gives_way.ended.result(TEST_LIMIT).finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_ends_with_the_context_since_no_position_is_ever_shifted(
    crowd: Callable[..., Crowd], kind: str
) -> None:
    crowded = crowd(kind)
    request = crowded.submit(PROMPT[:200], None)
    assert len(crowded.tokens(request)) == CELLS - 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_several_choices_is_computed_by_one_of_them_alone(crowd: Callable[..., Crowd], kind: str) -> None:
    """An abort is true only for the first sequence of a token that several share: no token of ours is shared."""
    crowded = crowd(kind)
    request = crowded.submit(PROMPT[:60], 4, n=3)
    crowded.tokens(request)
    prefilled: Counter[int] = Counter()
    for record in crowded.watcher.steps:
        indices = [part.choice for part in record.sequences if part.phase == "prefill"]
        assert len(indices) == len(set(indices))
        assert len(indices) < 2 or prefilled[0] >= 60, "the siblings wait for their leader"
        for part in record.sequences:
            prefilled[part.choice] += part.n_tokens if part.phase == "prefill" else 0
    assert prefilled[0] == 60
