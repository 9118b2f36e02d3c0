"""The parameters of a request beside tokens: constraints, time limits, logprobs of its prompt, a fresh start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from pyllmcancel.constraints.limits import TokenLimits
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import ConstraintError, InvalidRequestError, RequestFailed
from pyllmcancel.events import FinishReason, Limit
from tests.support.driver import CHUNK, Driver, MakeDriver, RecordingSink
from tests.support.fake_model import EOS, N_VOCAB


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

    def fork(self) -> Spelling:
        return replace(self, accepted=list(self.accepted))


class FailsToAccept(Spelling):
    def new(self) -> FailsToAccept:
        return FailsToAccept(self.word)

    def accept(self, token: int) -> bool:
        raise ConstraintError("cannot accept")


def test_a_constrained_answer_survives_the_abort_of_its_step(driver: Driver) -> None:
    tracked = driver.submit(constraint=Spelling(b"yes"), max_tokens=50)
    tracked.expected = list(b"yes")
    driver.cancel(driver.submit("a neighbour with a prompt that is long " * 3))
    driver.run_to_the_end()
    assert tracked.sink.text() == "yes"


@pytest.mark.parametrize("constraint", [Spelling(b"yes", fails_at=1), Spelling(b"yes", 0), FailsToAccept(b"yes")])
def test_a_constraint_that_fails_is_its_own_requests_fault(driver: Driver, constraint: Spelling) -> None:
    driver.submit("neighbour", max_tokens=6)
    tracked = driver.submit(constraint=constraint, max_tokens=50, stream=True)
    tracked.fails, tracked.expected = True, list(b"yes")
    driver.run_to_the_end()
    assert tracked.ending.finish_reason is FinishReason.ERROR
    with pytest.raises(RequestFailed, match=r"out of letters|cannot accept"):
        list(tracked.stream)


def test_a_preempted_prompt_is_described_once(make_driver: MakeDriver) -> None:
    driver = make_driver(n_ctx=96, parallel=2)
    driver.submit([3] * 20, max_tokens=40)
    prompt = list(range(20, 20 + 2 * CHUNK + 4))
    tracked = driver.answered(prompt, prompt_logprobs=True, n_logprobs=0, max_tokens=30)
    assert [entry.token for entry in tracked.sink.deltas[0].prompt_logprobs] == prompt[1:]


def test_a_prompt_that_takes_too_long_ends_with_nothing(driver: Driver) -> None:
    tracked = driver.submit([5] * (3 * CHUNK), max_prompt_seconds=0.0, n=2)
    tracked.expected = []
    driver.run_to_the_end()
    assert (tracked.ending.finish_reason, tracked.ending.limit) == (FinishReason.LENGTH, Limit.PROMPT_TIME)
    assert [delta.finish_reason for delta in tracked.sink.deltas] == [FinishReason.LENGTH] * 2
    assert 0 < tracked.ending.usage.prompt_tokens < 3 * CHUNK


@pytest.mark.parametrize(
    ("answer", "text", "reason", "limit"),
    [
        (b"one\ntwo\nthree", b"one\n", FinishReason.LENGTH, Limit.ANSWER_TIME),
        (b"one line", b"one line", FinishReason.STOP, None),
    ],
)
def test_an_answer_that_takes_too_long_ends_once_it_has_a_line(
    driver: Driver, answer: bytes, text: bytes, reason: FinishReason, limit: Limit | None
) -> None:
    driver.model.answers[b"question"] = answer
    tracked = driver.answered("question", max_predict_seconds=0.0, max_tokens=50, expected=text)
    assert (tracked.ending.finish_reason, tracked.ending.limit) == (reason, limit)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_predict_seconds": 0.0}, "time limit of the answer"),
        ({"max_prompt_seconds": 0.0, "prompt": [5] * (3 * CHUNK)}, "time limit of the prompt"),
        ({"min_indent": 2}, "indentation"),
        ({"max_tokens": 3}, "length"),
        ({}, "stop"),
    ],
)
def test_the_log_says_which_limit_ended_an_answer(
    driver: Driver, caplog: pytest.LogCaptureFixture, options: dict[str, Any], said: str
) -> None:
    driver.model.answers[b"question"] = b"one\ntwo\nthree"
    with caplog.at_level("INFO", "pyllmcancel.engine"):
        tracked = driver.answered(**{"prompt": "question", "max_tokens": 50} | options)
    tracked.expected = tracked.sink.tokens()
    assert f"request {tracked.request.id} finished ({said}): " in caplog.text


def test_a_late_prompt_beside_one_that_is_done_ends_once(driver: Driver) -> None:
    sink = RecordingSink()
    params = generation_params(max_tokens=0, max_prompt_seconds=0.0, temperature=0.0)
    driver.engine.submit([[5] * (4 * CHUNK), [6]], params, sink)
    driver.gate.open()
    assert sink.ending().finish_reason is FinishReason.LENGTH
    assert sorted(delta.index for delta in sink.deltas) == [0, 1]
    driver.gate.hold()


@pytest.mark.parametrize("shown", [False, True])
def test_a_stop_token_ends_the_answer_and_is_shown_if_asked_for(driver: Driver, shown: bool) -> None:
    driver.model.answers[b"question"] = b"one two"
    options = {"stop_tokens": frozenset(b"e"), "stop_shown": shown, "n_logprobs": 0, "max_tokens": 50}
    tracked = driver.answered("question", **options, expected=b"one" if shown else b"on")
    assert (tracked.ending.finish_reason, tracked.ending.usage.completion_tokens) == (FinishReason.STOP, 3)
    assert sum(len(delta.logprobs) for delta in tracked.sink.deltas) == len(tracked.expected)
    tracked = driver.answered("question", stop=(" t",), stop_shown=shown, max_tokens=50, expected=b"one t")
    assert tracked.sink.text() == ("one t" if shown else "one")


@pytest.mark.parametrize("token", [-1, 1 << 31, "x"])
def test_a_stop_token_that_is_none_is_an_error_of_its_request(driver: Driver, token: Any) -> None:
    with pytest.raises(InvalidRequestError, match="stop_tokens must be"):
        driver.submit("question", stop_tokens=frozenset({token}))


def test_a_form_that_must_end_ends_before_it_has_so_many_tokens(driver: Driver) -> None:
    limits = TokenLimits(N_VOCAB, ending=frozenset({EOS}), at_least=9, form=Spelling(b"yes"))
    tracked = driver.answered("question", constraint=limits, max_tokens=20, expected=b"yes")
    assert (tracked.sink.text(), tracked.ending.finish_reason) == ("yes", FinishReason.STOP)


def test_limits_that_leave_nothing_for_the_beginning_are_not_those_of_the_beginning() -> None:
    limits = TokenLimits(N_VOCAB, allowed=frozenset({EOS, 10_000}), ending=frozenset({EOS}), at_least=3).new()
    bits = np.unpackbits(limits.mask().view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [EOS]
