"""Drafts in the engine: they change how many steps an answer takes, and no token; an owner's past is the owner's."""

import logging
from typing import Any

import pytest

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.events import FinishReason
from pyllmcancel.step import MOST_EXTRA_OUTPUTS
from tests.support.driver import Driver, MakeDriver, Tracked
from tests.unit.test_generation_params import Spelling

ALL = ("past", "prediction", "ngram")
PROMPT = "a prompt that is asked again"
ANSWER = b"the answer to it, which has some length"
FILE = "one two three four five six seven eight nine ten eleven twelve"


@pytest.fixture
def drafting(make_driver: MakeDriver) -> Driver:
    driver = make_driver(draft_sources=ALL)
    driver.model.answers |= {PROMPT.encode(): ANSWER, b"write it": FILE.encode()}
    return driver


def asked(driver: Driver, prompt: str | list[int] = PROMPT, **options: Any) -> tuple[Tracked, int]:
    """Ask, and let everything be computed; returns the request, and the number of steps that it took."""
    before = len(driver.watcher.steps)
    tracked = driver.submit(prompt, settle=False, **{"max_tokens": 60} | options)
    driver.run_to_the_end()
    return tracked, len(driver.watcher.steps) - before


def test_an_answer_that_is_known_takes_no_step(drafting: Driver) -> None:
    first, n_steps = asked(drafting)
    assert n_steps > len(ANSWER)
    again, n_steps_again = asked(drafting)
    assert (again.sink.text(), n_steps_again) == (ANSWER.decode(), 0)
    assert again.ending.finish_reason is first.ending.finish_reason is FinishReason.STOP
    assert again.ending.usage.completion_tokens == first.ending.usage.completion_tokens
    assert again.ending.usage.prompt_tokens == again.ending.usage.cached_tokens == len(PROMPT)


def test_a_flood_of_known_answers_lets_others_compute(drafting: Driver) -> None:
    asked(drafting)
    other = drafting.submit("another prompt", max_tokens=60)
    flood = [drafting.submit(PROMPT, settle=False, max_tokens=60) for _ in range(5)]
    for n_ended in (1, 2):
        n_tokens = len(other.sink.tokens())
        drafting.step()
        assert sum(tracked.ended for tracked in flood) == n_ended
        assert len(other.sink.tokens()) > n_tokens
    drafting.cancel(other)
    drafting.run_to_the_end()
    assert [tracked.sink.text() for tracked in flood] == 5 * [ANSWER.decode()]


def test_what_was_cancelled_goes_on_where_it_was(drafting: Driver) -> None:
    cut = drafting.submit(PROMPT, max_tokens=60)
    drafting.step_until(lambda: len(cut.sink.tokens()) >= 20)
    drafting.cancel(cut)
    drafting.run_to_the_end()
    n_cut = len(cut.sink.tokens())
    before = len(drafting.watcher.steps)
    again = drafting.submit(PROMPT, max_tokens=60)
    # Delivered while the first step waits at the gate.
    assert again.sink.tokens() == list(ANSWER[:n_cut])
    drafting.run_to_the_end()
    assert again.sink.text() == ANSWER.decode()
    assert len(drafting.watcher.steps) - before <= len(ANSWER) - n_cut + 1


def test_a_typist_goes_along_what_was_suggested(drafting: Driver) -> None:
    asked(drafting)
    typed = PROMPT + ANSWER[:9].decode()
    drafting.model.answers[typed.encode()] = ANSWER[9:]
    tracked, n_steps = asked(drafting, typed)
    assert (tracked.sink.text(), n_steps) == (ANSWER[9:].decode(), 0)


@pytest.mark.parametrize(
    ("limit", "text", "reason"),
    [
        ({"max_tokens": 7}, ANSWER[:7].decode(), FinishReason.LENGTH),
        ({"stop": ("which",)}, ANSWER.decode().partition("which")[0], FinishReason.STOP),
    ],
)
def test_what_is_known_ends_with_its_limit(
    drafting: Driver, limit: dict[str, Any], text: str, reason: FinishReason
) -> None:
    asked(drafting)
    tracked, n_steps = asked(drafting, **limit)
    tracked.expected = tracked.sink.tokens()
    assert (tracked.sink.text(), n_steps, tracked.ending.finish_reason) == (text, 0, reason)
    # A shorter answer does not take the place of the longer one.
    assert asked(drafting)[1] == 0


def test_a_request_may_refuse_what_is_remembered(drafting: Driver) -> None:
    _, n_steps = asked(drafting, reuse_prefix=False)
    assert asked(drafting, reuse_prefix=False)[1] == n_steps
    assert asked(drafting)[1] > len(ANSWER)  # nor is it remembered


@pytest.mark.parametrize("other", [{"temperature": 1.0, "seed": 3}, {"n_logprobs": 2}])
def test_with_other_parameters_the_past_is_a_draft(drafting: Driver, other: dict[str, Any]) -> None:
    _, n_steps = asked(drafting)
    tracked, n_steps_drafted = asked(drafting, **other)
    tracked.expected = tracked.sink.tokens()
    assert 0 < n_steps_drafted < n_steps / 2


def test_an_answer_in_its_prompt_takes_few_steps(drafting: Driver) -> None:
    prompt = f"repeat: {FILE}. now: one two"
    drafting.model.answers[prompt.encode()] = FILE.removeprefix("one two").encode()
    tracked, n_steps = asked(drafting, prompt, max_tokens=100)
    assert tracked.sink.text() == FILE.removeprefix("one two")
    assert n_steps < len(FILE) / 3


def test_a_prediction_is_a_draft(drafting: Driver) -> None:
    prediction = tuple(FILE.replace("six", "6").encode())
    tracked, n_steps = asked(drafting, "write it", max_tokens=100, prediction=prediction)
    assert tracked.sink.text() == FILE
    assert n_steps < len(FILE) / 3


@pytest.mark.parametrize("token", [-1, 257, 2**40, "x", 1.5])
def test_a_prediction_of_no_tokens_is_refused(drafting: Driver, token: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prediction"):
        drafting.submit("write it", prediction=(116, token))
    assert asked(drafting)[0].sink.text() == ANSWER.decode()


def test_a_constraint_is_obeyed_within_a_draft(drafting: Driver) -> None:
    word = b"yes, of course"
    for prediction in (word, b"yes, of cabbage", b"no"):
        tracked, n_steps = asked(drafting, constraint=Spelling(word), prediction=tuple(prediction))
        tracked.expected = list(word)
        assert (tracked.sink.text(), tracked.ending.finish_reason) == (word.decode(), FinishReason.STOP)
        assert n_steps <= len(word)


def test_who_types_into_a_gap_goes_along_what_was_suggested(drafting: Driver) -> None:
    """Typed text stands before the gap, not at the prompt's end; the answer's first tokens show where it is."""
    before, behind, middle = 1, 2, 3
    drafting.model.special_tokens = {"fim_pre": before, "fim_suf": behind, "fim_mid": middle}

    def prompt(typed: str) -> list[int]:
        return [before, *b"def f(): ", *typed.encode(), behind, *b"end", middle]

    drafting.model.answers[bytes(prompt(""))] = ANSWER
    first, n_steps = asked(drafting, prompt(""))
    assert first.sink.text() == ANSWER.decode()
    typed = ANSWER[:12].decode()
    drafting.model.answers[bytes(prompt(typed))] = ANSWER[12:]
    tracked, n_steps_typed = asked(drafting, prompt(typed))
    assert tracked.sink.text() == ANSWER[12:].decode()
    assert n_steps_typed < n_steps / 4


def test_a_cancel_within_a_drafted_step_loses_only_the_step(drafting: Driver) -> None:
    tracked = drafting.submit("write it", max_tokens=100, prediction=tuple(FILE.encode()))
    drafting.step_until(lambda: any(part.n_drafted for step in drafting.watcher.steps for part in step.sequences))
    drafting.cancel(tracked)
    drafting.run_to_the_end()
    n_cut = len(tracked.sink.tokens())
    assert tracked.sink.text() == FILE[:n_cut]
    again, _ = asked(drafting, "write it", max_tokens=100)
    assert again.sink.text() == FILE


@pytest.mark.parametrize("memory_kind", ["hybrid", "recurrent"])
def test_where_nothing_can_be_undone_nothing_is_drafted(make_driver: MakeDriver, memory_kind: str) -> None:
    driver = make_driver(draft_sources=ALL, memory_kind=memory_kind)
    driver.model.answers[PROMPT.encode()] = ANSWER
    for _ in range(2):
        tracked, n_steps = asked(driver, prediction=tuple(ANSWER))
        assert (tracked.sink.text(), n_steps > len(ANSWER)) == (ANSWER.decode(), True)


@pytest.mark.parametrize(("asked_for", "n_lines"), [(MOST_EXTRA_OUTPUTS, 0), (MOST_EXTRA_OUTPUTS + 1, 1)])
def test_more_tokens_than_a_step_can_have_are_said_at_the_start(
    make_driver: MakeDriver, caplog: pytest.LogCaptureFixture, asked_for: int, n_lines: int
) -> None:
    with caplog.at_level(logging.WARNING, logger="pyllmcancel.engine"):
        make_driver(draft_max=asked_for)
    told = [record.getMessage() for record in caplog.records]
    assert told == n_lines * [f"drafts of {asked_for} tokens were asked for: a step has at most 32 drafted tokens"]
