"""Drafts of sequences that compute together with divided cells: all have as many tokens as each other, or none."""

from typing import Any

import pytest

from pyllmcancel.drafting.answer_drafts import AnswerDrafts, Experience, propose_alike
from pyllmcancel.drafting.length import MAX_ROWS, best_draft
from pyllmcancel.step import StepItem
from tests.support.driver import Driver, MakeDriver, recorded_steps
from tests.unit.test_drafting_length import TILES, cost_of_tiles, measured, random_tokens
from tests.unit.test_generation_params import Spelling

FILE = "one two three four five six seven eight nine ten eleven twelve"


class Costs:
    """The seconds of a step: `each` further row takes so many."""

    def __init__(self, each: float) -> None:
        self.each = each

    def of(self, n_rows: int) -> float:
        return 1.0 + self.each * (n_rows - 1)

    def observe(self, n_rows: int, seconds: float) -> None: ...


def driver_of(make_driver: MakeDriver, **options: Any) -> Driver:
    driver = make_driver(**{"draft_sources": ("ngram",), "kv_unified": False, "parallel": 2, "draft_max": 3} | options)
    driver.engine.workload._drafts._costs = Costs(0.01)  # type: ignore[attr-defined]
    return driver


def steps_of(driver: Driver) -> list[list[StepItem]]:
    """Record the steps of two and more sequences."""
    return recorded_steps(driver.context, at_least=2)


def ask(driver: Driver, prompts: list[str], **options: Any) -> None:
    for prompt in prompts:
        driver.submit(prompt, max_tokens=len(FILE), settle=False, **options)
    driver.run_to_the_end()


def copying(driver: Driver, number: int) -> str:
    """Return a prompt whose answer repeats a part of it. With short drafts no answer ends before the others begin."""
    prompt = f"{number}: {FILE} again:"
    driver.model.answers[prompt.encode()] = FILE.encode()
    return prompt


def test_sequences_that_repeat_their_prompts_are_drafted_for_together(make_driver: MakeDriver) -> None:
    driver = driver_of(make_driver)
    steps = steps_of(driver)
    ask(driver, [copying(driver, 1), copying(driver, 2)])
    lengths = [[len(item.draft) for item in items] for items in steps]
    assert any(max(found) > 1 for found in lengths)
    assert all(len(set(found)) == 1 for found in lengths)
    assert len(driver.watcher.steps) < len(FILE)


@pytest.mark.parametrize(
    "other",
    [{"prompt": "nothing is to be found in this"}, {"prompt": "short"}, {"constraint": Spelling(FILE.encode())}],
)
def test_nobody_has_a_draft_beside_one_that_has_none(make_driver: MakeDriver, other: dict[str, Any]) -> None:
    driver = driver_of(make_driver, draft_sources=("prediction",) if "prompt" in other else ("ngram",))
    steps = steps_of(driver)
    given = {"prompt": copying(driver, 2)} | other
    driver.submit(copying(driver, 1), max_tokens=30, settle=False, prediction=tuple(FILE.encode()))
    second = driver.submit(max_tokens=30, settle=False, **given)
    driver.run_to_the_end()
    if "constraint" in other:
        second.expected = second.sink.tokens()
    assert steps
    assert all(not item.draft for items in steps for item in items)


def leave_a_gap(driver: Driver) -> list[list[StepItem]]:
    """Have the middle one of three leave. Returns the steps of two and more from then on."""
    three = [driver.submit(copying(driver, n), max_tokens=len(FILE), settle=False) for n in range(3)]
    driver.step_until(lambda: all(one.sink.tokens() for one in three))
    driver.cancel(next(one for one in three if one.request.choices[0].seq == 1))
    steps = steps_of(driver)
    driver.run_to_the_end()
    return steps


def test_sequences_with_a_gap_between_them_have_no_drafts(make_driver: MakeDriver) -> None:
    """llama.cpp computes them in two passes."""
    driver = driver_of(make_driver, parallel=3)
    driver.engine.workload.scheduler.gathers = False
    steps = leave_a_gap(driver)
    assert [0, 2] in [[item.seq for item in items] for items in steps]
    assert all(not item.draft for items in steps for item in items)


def test_when_one_was_moved_into_the_gap_they_have_drafts_again(make_driver: MakeDriver) -> None:
    steps = leave_a_gap(driver_of(make_driver, parallel=3))
    assert [[item.seq for item in items] for items in steps if items[0].draft]


@pytest.mark.parametrize(("p", "each", "n_answers", "expected"), [
    (0.99, 0.01, 2, MAX_ROWS // 2 - 1),
    (0.99, 0.01, 8, MAX_ROWS // 8 - 1),
    (0.99, 1.0, 2, 0),
    (0.1, 0.3, 2, 0),
])  # fmt: skip
def test_the_length_is_the_one_that_pays(p: float, each: float, n_answers: int, expected: int) -> None:
    assert best_draft(n_answers * [p], Costs(each), 100).n_tokens == expected


@pytest.mark.parametrize("n_answers", [2, 4])
def test_copies_in_company_are_faster_with_the_costs_of_a_cpu(n_answers: int) -> None:
    """The first draft is as long as an answer may lose; later ones become longer."""
    costs, n_steps, seconds = measured(TILES), 0, 0.0
    texts = [random_tokens(number, 150) for number in range(n_answers)]
    answers = [AnswerDrafts([*text, 1, 2, 3, *text[:12]], (), costs, Experience()) for text in texts]
    place = 12
    while place < 150:
        drafts = propose_alike(answers, costs, min(MAX_ROWS // n_answers - 1, 150 - place - 1))
        n_tokens = 1 + len(drafts[0])
        seconds += cost_of_tiles(n_answers * n_tokens) / cost_of_tiles(n_answers)
        for answer, text in zip(answers, texts, strict=True):
            answer.follow(text[place : place + n_tokens])
        place, n_steps = place + n_tokens, n_steps + 1
    assert (2.6 if n_answers == 2 else 1.7) * seconds < 138, n_steps
