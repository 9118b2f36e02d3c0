"""What a request may ask for beside tokens: constraints, time limits, logprobs of its prompt, a fresh start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from pyllmcancel.engine import generation_params
from pyllmcancel.errors import ConstraintError, RequestFailed
from pyllmcancel.events import FinishReason
from tests.support.driver import CHUNK, Driver, RecordingSink
from tests.support.fake_model import N_VOCAB

MakeDriver = Callable[..., Driver]


@dataclass
class Spelling:
    """Allows the bytes of a word, one after the other; fails when it is asked for its `fails_at`-th byte."""

    word: bytes
    fails_at: int = -1
    accepted: list[int] = field(default_factory=list)

    def new(self) -> Spelling:
        return Spelling(self.word, self.fails_at)

    def mask(self) -> np.ndarray | None:
        if len(self.accepted) == self.fails_at:
            raise ConstraintError("out of letters")
        bits = np.zeros((N_VOCAB + 31) // 32 * 32, np.uint8)
        bits[self.word[len(self.accepted)]] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> bool:
        self.accepted.append(token)
        return len(self.accepted) == len(self.word)


class FailsToAccept(Spelling):
    def new(self) -> FailsToAccept:
        return FailsToAccept(self.word)

    def accept(self, token: int) -> bool:
        raise ConstraintError("cannot accept")


def test_a_constraint_decides_and_ends_the_answer(driver: Driver) -> None:
    tracked = driver.submit(constraint=Spelling(b"yes"), max_tokens=50)
    tracked.expected = list(b"yes")
    driver.run_to_the_end()
    assert (tracked.sink.text(), tracked.ending.finish_reason) == ("yes", FinishReason.STOP)


def test_every_choice_has_a_constraint_of_its_own(driver: Driver) -> None:
    tracked = driver.submit(constraint=Spelling(b"yes"), n=2, max_tokens=50)
    tracked.expected = list(b"yes")
    driver.run_to_the_end()
    assert [tracked.sink.text(index) for index in range(2)] == ["yes", "yes"]


def test_a_constrained_answer_survives_the_abort_of_its_step(driver: Driver) -> None:
    tracked = driver.submit(constraint=Spelling(b"yes"), max_tokens=50)
    tracked.expected = list(b"yes")
    neighbour = driver.submit("a neighbour with a prompt that is long " * 3)
    driver.cancel(neighbour)
    driver.run_to_the_end()
    assert tracked.sink.text() == "yes"


@pytest.mark.parametrize("constraint", [Spelling(b"yes", fails_at=1), Spelling(b"yes", 0), FailsToAccept(b"yes")])
def test_a_constraint_that_fails_is_its_own_requests_fault(driver: Driver, constraint: Spelling) -> None:
    neighbour = driver.submit("neighbour", max_tokens=6)
    tracked = driver.submit(constraint=constraint, max_tokens=50, stream=True)
    tracked.fails, tracked.expected = True, list(b"yes")
    driver.run_to_the_end()
    assert tracked.ending.finish_reason is FinishReason.ERROR
    assert neighbour.sink.tokens() == neighbour.expected
    assert tracked.stream is not None
    with pytest.raises(RequestFailed, match=r"out of letters|cannot accept"):
        list(tracked.stream)


def test_a_request_for_no_tokens_computes_its_prompt_and_keeps_it(driver: Driver) -> None:
    tracked = driver.submit("a prompt to remember", max_tokens=0)
    driver.run_to_the_end()
    assert (tracked.sink.tokens(), tracked.ending.finish_reason) == ([], FinishReason.LENGTH)
    assert tracked.ending.usage.completion_tokens == 0
    again = driver.submit("a prompt to remember", max_tokens=1)
    driver.run_to_the_end()
    assert again.ending.usage.cached_tokens == len(again.prompt) - 1


def test_the_prompts_logprobs_come_with_the_first_delta_of_every_choice(driver: Driver) -> None:
    prompt = list(range(10, 10 + 2 * CHUNK + 5))
    tracked = driver.submit(prompt, prompt_logprobs=True, n_logprobs=1, n=2, max_tokens=3)
    driver.run_to_the_end()
    for index in range(2):
        first, *others = [delta for delta in tracked.sink.deltas if delta.index == index]
        assert [entry.token for entry in first.prompt_logprobs] == prompt[1:]
        assert all(delta.prompt_logprobs == () for delta in others)


def test_a_preempted_prompt_is_described_once(make_driver: MakeDriver) -> None:
    driver = make_driver(n_ctx=96, parallel=2)
    neighbour = driver.submit([3] * 20, max_tokens=40)
    prompt = list(range(20, 20 + 2 * CHUNK + 4))
    tracked = driver.submit(prompt, prompt_logprobs=True, n_logprobs=0, max_tokens=30)
    driver.run_to_the_end()
    assert neighbour.ending.finish_reason is tracked.ending.finish_reason is FinishReason.LENGTH
    assert [entry.token for entry in tracked.sink.deltas[0].prompt_logprobs] == prompt[1:]


def test_a_request_may_refuse_what_is_cached(driver: Driver) -> None:
    driver.submit("the same prompt")
    driver.run_to_the_end()
    again = driver.submit("the same prompt", reuse_prefix=False, n=2)
    driver.run_to_the_end()
    assert again.ending.usage.cached_tokens == 0
    assert again.ending.usage.prompt_tokens == len(again.prompt)


def test_a_prompt_that_takes_too_long_ends_with_nothing(driver: Driver) -> None:
    tracked = driver.submit([5] * (3 * CHUNK), max_prompt_seconds=0.0, n=2)
    tracked.expected = []
    driver.run_to_the_end()
    assert tracked.ending.finish_reason is FinishReason.LENGTH
    assert [delta.finish_reason for delta in tracked.sink.deltas] == [FinishReason.LENGTH] * 2
    assert 0 < tracked.ending.usage.prompt_tokens < 3 * CHUNK


def test_an_answer_that_takes_too_long_ends_once_it_has_a_line(driver: Driver) -> None:
    driver.model.answers[b"question"] = b"one\ntwo\nthree"
    tracked = driver.submit("question", max_predict_seconds=0.0, max_tokens=50)
    tracked.expected = list(b"one\n")
    driver.run_to_the_end()
    assert (tracked.sink.text(), tracked.ending.finish_reason) == ("one\n", FinishReason.LENGTH)


def test_an_answer_of_one_line_is_not_cut(driver: Driver) -> None:
    driver.model.answers[b"question"] = b"one line"
    tracked = driver.submit("question", max_predict_seconds=0.0, max_tokens=50)
    tracked.expected = list(b"one line")
    driver.run_to_the_end()
    assert (tracked.sink.text(), tracked.ending.finish_reason) == ("one line", FinishReason.STOP)


def test_a_late_prompt_beside_one_that_is_done_ends_once(driver: Driver) -> None:
    sink = RecordingSink()
    params = generation_params(max_tokens=0, max_prompt_seconds=0.0, temperature=0.0)
    driver.engine.submit([[5] * (4 * CHUNK), [6]], params, sink)
    driver.gate.open()
    assert sink.ending().finish_reason is FinishReason.LENGTH
    assert sorted(delta.index for delta in sink.deltas) == [0, 1]
    driver.gate.hold()


def test_an_ending_that_planning_brings_about_is_told_at_once(driver: Driver) -> None:
    tracked = driver.submit(constraint=Spelling(b"yes", fails_at=0), max_tokens=5)
    tracked.fails = True
    driver.run_to_the_end()
    assert len(tracked.sink.endings) == 1
