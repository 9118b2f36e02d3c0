"""A draft model on a simulated machine: it saves time where its tokens are accepted, and costs little elsewhere.

The engine is the real one. The times of all steps are those of a table, by rows, so that the results are exact.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyllmcancel.step import StepItem, StepResult, StepRow
from tests.support import fake_native
from tests.support.driver import Driver, MakeDriver

PROMPT_TOKEN = 0.06  # the time of a prompt's token, in steps of one row
ANSWER = 150  # tokens


def cpu(n_rows: int) -> float:
    """Return the time of a step whose rows gain little, in steps of one row."""
    few = 1.0 + 0.6 * (min(n_rows, 4) - 1)  # 2.8 of four
    return few + 0.48 * (min(max(n_rows, 4), 32) - 4) + PROMPT_TOKEN * max(n_rows - 32, 0)


def gpu(n_rows: int) -> float:
    """Return the time of a step whose rows cost next to nothing, in steps of one row."""
    return 1.0 + 0.02 * n_rows


@dataclass
class Machine:
    """Two contexts whose steps take time by their rows."""

    driver: Driver
    cost: Callable[[int], float]
    share: float  # the time of the draft model's step, of the model's with as many rows
    p: float  # the probability with which a drafted token is the model's
    now: float = 0.0  # in steps of one row
    n_drafts: int = 0  # the number of the draft model's steps
    slow: Callable[[int], float] = lambda _: 1.0  # how many times as long as usual one of these takes, by its number
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        draft = self.driver.draft_context
        if draft is not None:
            self.driver.engine.workload._drafts._model._clock = lambda: self.now  # type: ignore[attr-defined]
            self._slowed(draft, self._drafted)
        self._slowed(self.driver.context, self._computed)

    def _slowed(self, context: fake_native.Context, took: Callable[[list[StepItem], StepResult], StepResult]) -> None:
        step = context.step

        def slowed(items: Any, **options: Any) -> StepResult:
            parts = list(items)
            return took(parts, step(parts, **options))

        context.step = slowed  # type: ignore[method-assign]

    def _computed(self, items: list[StepItem], result: StepResult) -> StepResult:
        took = self.cost(sum(item.n_rows for item in items))
        self.now += took
        return result._replace(decode_us=round(1e6 * took), sample_us=0)

    def _drafted(self, items: list[StepItem], result: StepResult) -> StepResult:
        self.n_drafts += 1
        took = self.share * self.slow(self.n_drafts) * self.cost(sum(item.n_tokens for item in items))
        self.now += took
        return result._replace(rows=[self._guessed(row) for row in result.rows])

    def _guessed(self, row: StepRow) -> StepRow:
        if not row.sampled or self._random.random() < self.p:
            return row
        wrong = (row.sampled[0].token + 1) % self.driver.model.n_vocab
        return row._replace(sampled=[row.sampled[0]._replace(token=wrong)])


def times(make_driver: MakeDriver, *, n_answers: int, n_prompt: int, **machine: Any) -> list[float]:
    """Return the time of each answer, its prompt's included, in the time that it takes without a draft model."""
    found = []
    alone = Machine(make_driver(), machine["cost"], 0.0, 0.0)
    drafting = Machine(make_driver(draft=fake_native.Model(), draft_sources=("model",)), **machine)
    for number in range(n_answers):
        chance = random.Random(number)
        prompt = [chance.randrange(97, 122) for _ in range(n_prompt)]
        took = []
        for one in (alone, drafting):
            before = one.now
            tracked = one.driver.submit(prompt, max_tokens=ANSWER, reuse_prefix=False, settle=False)
            one.driver.run_to_the_end()
            assert tracked.sink.tokens() == tracked.expected
            took.append(one.now - before)
        found.append(took[1] / took[0])
    return found


@pytest.mark.parametrize("n_prompt", [20, 250])
@pytest.mark.parametrize("p", [0.0, 0.95])
def test_a_model_that_saves_nothing_costs_little(make_driver: MakeDriver, p: float, n_prompt: int) -> None:
    """Its step takes two fifths of the model's, and rows are expensive: even right tokens save nothing."""
    first, *later = times(make_driver, n_answers=4, n_prompt=n_prompt, cost=cpu, share=0.4, p=p)
    assert first < 1.06
    assert max(later) < 1.01


@pytest.mark.parametrize("n_prompt", [20, 250])
def test_a_model_that_is_wrong_is_soon_not_asked(make_driver: MakeDriver, n_prompt: int) -> None:
    found = times(make_driver, n_answers=6, n_prompt=n_prompt, cost=gpu, share=0.4, p=0.0)
    assert found[0] < 1.1
    assert max(found[4:]) < 1.02


@pytest.mark.parametrize(("share", "n_prompt", "expected"), [(0.1, 20, 0.3), (0.1, 250, 0.5), (0.4, 20, 0.7)])
def test_a_right_model_saves_time(make_driver: MakeDriver, share: float, n_prompt: int, expected: float) -> None:
    found = times(make_driver, n_answers=4, n_prompt=n_prompt, cost=gpu, share=share, p=0.95)
    assert sum(found) / len(found) < expected


def test_steps_that_were_slow_for_another_reason_are_forgotten(make_driver: MakeDriver) -> None:
    slow = {"slow": lambda n: 6.0 if n < 15 else 1.0}
    assert times(make_driver, n_answers=8, n_prompt=20, cost=gpu, share=0.1, p=0.95, **slow)[-1] < 0.4


def test_an_owners_model_gets_another_chance(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was always wrong; the answers that follow are of another kind."""
    monkeypatch.setattr("pyllmcancel.drafting.answer_drafts.RETRIAL", 8)
    drafting = Machine(make_driver(draft=fake_native.Model(), draft_sources=("model",)), gpu, 0.1, 0.0)
    n_steps = []
    for number in range(20):
        drafting.p = 0.0 if number < 10 else 1.0
        before = len(drafting.driver.watcher.steps)
        drafting.driver.submit(f"prompt {number}", max_tokens=ANSWER, settle=False)
        drafting.driver.run_to_the_end()
        n_steps.append(len(drafting.driver.watcher.steps) - before)
    assert n_steps[9] >= ANSWER
    assert n_steps[-1] < ANSWER / 3
