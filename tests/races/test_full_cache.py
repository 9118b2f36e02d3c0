"""Cells running out, on the compiled engine: preempted requests go on later with the same output, and none fails."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.events import FinishReason
from pyllmcancel.requests.request import Request
from tests.races.real import Real, check_and_close
from tests.support.driver import Stop
from tests.support.step_gate import TEST_LIMIT

# Chosen so that in every answer here the likeliest token is 8e-5 of the logits' standard deviation ahead of the next, a
# hundred times what other kernels make of it.
PROMPT = [(19 * n + 7) % 900 for n in range(300)]
KINDS = ("attention", "sliding-window", "recurrent", "hybrid")
CELLS = 256  # the least that llama.cpp gives


class Crowd(Real):
    """An engine whose requests want more cells than there are, and what they get."""

    def __init__(self, path: Path, parallel: int) -> None:
        super().__init__(path, parallel=parallel, n_ctx=CELLS)

    def submit_together(self, prompts: list[list[int]], max_tokens: int, then: Any = lambda: None) -> list[Request]:
        """One request for each; none computes its second step before all are there, and so they crowd each other.

        `then` is called by the engine's thread after each step.
        """
        stop = Stop()

        def step_done(_record: object) -> None:
            stop.here()
            then()

        self.watcher.on_step_done = step_done
        try:
            return [self.submit(prompt, max_tokens=max_tokens) for prompt in prompts]
        finally:
            stop.go_on()

    def tokens(self, request: Request, index: int = 0) -> list[int]:
        """Return a request's tokens at the end, which must be its whole answer."""
        assert self.sinks[request.id].ending().finish_reason is FinishReason.LENGTH
        return super().tokens(request, index)

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
    check_and_close(made)


def alone(crowd: Callable[..., Crowd], kind: str, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    lonely = crowd(kind, parallel=1)
    return [lonely.tokens(lonely.submit(prompt, max_tokens=max_tokens)) for prompt in prompts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("parallel", "n_prompts", "length", "max_tokens"), [(4, 4, 40, 100), (12, 24, 5, 30)])
def test_preempted_requests_go_on_with_the_same_output(
    crowd: Callable[..., Crowd], kind: str, *, parallel: int, n_prompts: int, length: int, max_tokens: int
) -> None:
    prompts = [PROMPT[start : start + length] for start in range(n_prompts)]
    crowded = crowd(kind, parallel)
    got = [crowded.tokens(request) for request in crowded.submit_together(prompts, max_tokens)]
    assert crowded.n_preempted > 0
    assert {record.status for record in crowded.watcher.steps} <= {"ok", "no_room"}
    assert got == alone(crowd, kind, prompts, max_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_of_one_prompt_give_way_and_go_on_too(crowd: Callable[..., Crowd], kind: str) -> None:
    crowded = crowd(kind, parallel=3)
    request = crowded.submit(PROMPT[:40], max_tokens=100, n=3)
    got = [crowded.tokens(request, index) for index in range(3)]
    assert crowded.n_preempted > 0
    assert got == alone(crowd, kind, [PROMPT[:40]], 100) * 3


@pytest.mark.parametrize("kind", KINDS)
def test_no_neighbour_is_touched_when_a_preempted_request_is_cancelled(crowd: Callable[..., Crowd], kind: str) -> None:
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
def test_an_answer_ends_with_the_context_as_no_position_is_shifted(crowd: Callable[..., Crowd], kind: str) -> None:
    crowded = crowd(kind)
    assert len(crowded.tokens(crowded.submit(PROMPT[:200], max_tokens=None))) == CELLS - 200


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_several_choices_is_computed_by_one_of_them_alone(crowd: Callable[..., Crowd], kind: str) -> None:
    """An abort is true only for the first sequence of a token that several share: no token of ours is shared."""
    crowded = crowd(kind)
    crowded.tokens(crowded.submit(PROMPT[:60], max_tokens=4, n=3))
    prefilled: Counter[int] = Counter()
    for record in crowded.watcher.steps:
        indices = [part.choice for part in record.sequences if part.phase == "prefill"]
        assert len(indices) == len(set(indices))
        assert len(indices) < 2 or prefilled[0] >= 60, "the siblings wait for their leader"
        for part in record.sequences:
            prefilled[part.choice] += part.n_tokens if part.phase == "prefill" else 0
    assert prefilled[0] == 60
