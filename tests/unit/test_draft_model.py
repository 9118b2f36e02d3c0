"""A draft model in the engine: it changes how many steps an answer takes; its cancels and failures cost drafts only."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.engine.draft_model import MAX_FAILURES
from pyllmcancel.errors import Error
from pyllmcancel.events import FinishReason
from pyllmcancel.step import StepItem, StepResult, StepStatus
from tests.support import fake_native
from tests.support.driver import Driver, Tracked, complete, recorded_steps
from tests.unit.test_drafts import PROMPT, asked

MakeDriver = Callable[..., Driver]
LENGTH = 60


def recorded_drafts(driver: Driver) -> list[list[StepItem]]:
    return recorded_steps(draft_context(driver))


def n_tokens(steps: list[list[StepItem]]) -> int:
    return sum(item.n_tokens for items in steps for item in items)


def drafting_driver(make_driver: MakeDriver, **options: Any) -> Driver:
    """A driver with a draft model that agrees with the model, and no other source of drafts."""
    return make_driver(**{"draft": fake_native.Model(), "draft_sources": ("model",)} | options)


@pytest.fixture
def drafting(make_driver: MakeDriver) -> Driver:
    return drafting_driver(make_driver)


def draft_context(driver: Driver) -> fake_native.Context:
    assert driver.draft_context is not None
    return driver.draft_context


def n_drafted(driver: Driver) -> int:
    return sum(part.n_drafted for step in driver.watcher.steps for part in step.sequences)


def drafted_first(driver: Driver) -> Tracked:
    """Submit a request, and go on until its first draft is about to be computed."""
    tracked = driver.submit(PROMPT, max_tokens=LENGTH)
    gate = draft_context(driver).gate
    gate.hold()
    driver.gate.open()
    held = gate.wait_held()
    while held.items[0].n_tokens > 1 and n_drafted(driver) == 0 and len(tracked.sink.tokens()) < 4:
        gate.let_through()
        held = gate.wait_held()
    return tracked


def test_a_text_that_agrees_for_long_comes_first(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, draft_sources=("prediction", "model"))
    steps = recorded_drafts(driver)
    text = b"what the client expects, word for word, and all of it is said"
    driver.model.answers[PROMPT.encode()] = text
    tracked, n_steps = asked(driver, prediction=tuple(text), max_tokens=100)
    assert tracked.sink.text() == text.decode()
    assert n_steps < len(text) / 3
    assert len(steps) < 10


def test_sequences_are_drafted_for_together(drafting: Driver) -> None:
    steps = recorded_drafts(drafting)
    for prompt in (PROMPT, "another one"):
        drafting.submit(prompt, max_tokens=LENGTH, settle=False)
    drafting.run_to_the_end()
    assert any([item.n_tokens for item in items] == [1, 1] for items in steps)


@pytest.mark.parametrize("n_before", range(5))
def test_a_cancel_ends_a_draft_at_any_step(drafting: Driver, n_before: int) -> None:
    steps = recorded_drafts(drafting)
    tracked = drafted_first(drafting)
    gate = draft_context(drafting).gate
    for _ in range(n_before):
        gate.let_through()
        gate.wait_held()
    n_steps, n_draft_steps = len(drafting.watcher.steps), len(steps)
    assert drafting.engine.cancel(tracked.request)
    assert tracked.ending.finish_reason is FinishReason.CANCELLED
    assert (len(drafting.watcher.steps), len(steps)) == (n_steps, n_draft_steps)
    gate.open()
    again, _ = asked(drafting)
    assert again.sink.tokens() == again.expected


def test_nothing_is_drafted_for_a_client_that_has_left(drafting: Driver) -> None:
    steps = recorded_drafts(drafting)
    tracked = drafted_first(drafting)
    n_steps, n_draft_steps = len(drafting.watcher.steps), len(steps)
    tracked.client.left = True
    draft_context(drafting).gate.let_through()
    assert tracked.ending.finish_reason is FinishReason.CANCELLED
    assert (len(drafting.watcher.steps), len(steps)) == (n_steps, n_draft_steps)


@pytest.mark.parametrize("n_before", [0, 1, 2, 4])
@pytest.mark.parametrize("status", [StepStatus.NO_ROOM, StepStatus.FAILED_ALLOC, StepStatus.FAILED_COMPUTE])
def test_a_failed_step_costs_an_answer_its_drafts(
    drafting: Driver, caplog: pytest.LogCaptureFixture, status: StepStatus, n_before: int
) -> None:
    draft_context(drafting).next_status.extend([StepStatus.OK] * n_before + [status])
    with caplog.at_level(logging.WARNING):
        tracked, _ = asked(drafting)
    assert tracked.sink.tokens() == tracked.expected
    assert [record.message for record in caplog.records if "draft model" in record.message] == [
        f"request {tracked.request.id} goes on without the draft model: {told}"
        for told in (
            ["its context has no room"]
            if status is StepStatus.NO_ROOM
            else [f"its step failed ({status.name.lower()})"]
        )
    ]
    # The next answer has drafts again.
    _, n_steps = asked(drafting, "another prompt, of no such length")
    assert n_steps < LENGTH / 2


def test_a_model_that_keeps_failing_is_not_used_any_more(drafting: Driver, caplog: pytest.LogCaptureFixture) -> None:
    steps = recorded_drafts(drafting)
    draft_context(drafting).next_status.extend([StepStatus.FAILED_COMPUTE] * 100)
    with caplog.at_level(logging.WARNING):
        for number in range(MAX_FAILURES + 2):
            tracked, _ = asked(drafting, f"prompt {number}", max_tokens=20)
            assert tracked.sink.tokens() == tracked.expected
    assert len(steps) == MAX_FAILURES
    assert "not used any more" in caplog.text
    assert draft_context(drafting).n_cells_used == 0


@pytest.mark.parametrize("error", [MemoryError(), Error("llama.cpp refuses")])
def test_an_exception_costs_an_answer_its_drafts(drafting: Driver, error: Exception) -> None:
    context = draft_context(drafting)
    step = context.step

    def failing(*_: Any, **__: Any) -> StepResult:
        context.step = step  # type: ignore[method-assign]
        raise error

    context.step = failing  # type: ignore[method-assign]
    tracked, _ = asked(drafting)
    assert tracked.sink.tokens() == tracked.expected


def test_a_context_that_refuses_the_tokens_costs_an_answer_its_drafts(drafting: Driver) -> None:
    def refuse(_: object) -> None:
        raise Error("token 300 is not in the vocabulary")

    draft_context(drafting).before_open = refuse
    tracked, _ = asked(drafting)
    assert (tracked.sink.tokens(), n_drafted(drafting)) == (tracked.expected, 0)


def test_a_context_without_room_costs_answers_their_drafts(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, n_ctx=128)
    draft_context(driver).lose_cells(100)
    for prompt in (PROMPT, "another prompt"):
        tracked, _ = asked(driver, prompt)
        assert tracked.sink.tokens() == tracked.expected


def test_idle_prefixes_give_way(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, n_ctx=160)
    for number in range(4):
        tracked, n_steps = asked(driver, f"{number} {PROMPT}")
        assert tracked.sink.tokens() == tracked.expected
        assert n_steps < LENGTH / 2


def test_no_drafts_beyond_the_draft_models_context(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, draft=fake_native.Model(n_ctx_train=64))
    steps = recorded_drafts(driver)
    tracked, _ = asked(driver, max_tokens=100)
    assert tracked.sink.tokens() == tracked.expected
    assert 0 < n_tokens(steps) < 100


def test_an_owner_goes_on_from_its_own_tokens(drafting: Driver) -> None:
    first, _ = asked(drafting, owner="alice")
    longer = [*PROMPT.encode(), *first.sink.tokens()]
    steps = recorded_drafts(drafting)
    asked(drafting, longer, owner="alice", max_tokens=8)
    assert n_tokens(steps) < len(longer) / 2


@pytest.mark.parametrize("options", [{"owner": "bob"}, {"owner": "alice", "reuse_prefix": False}])
def test_nobody_else_goes_on_from_them(drafting: Driver, options: dict[str, Any]) -> None:
    first, _ = asked(drafting, owner="alice")
    longer = [*PROMPT.encode(), *first.sink.tokens()]
    steps = recorded_drafts(drafting)
    asked(drafting, longer, max_tokens=8, **options)
    assert n_tokens(steps) > len(longer)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_a_preempted_answer_is_drafted_for_again(make_driver: MakeDriver, kv_unified: bool) -> None:
    driver = drafting_driver(make_driver, parallel=1, kv_unified=kv_unified)
    background = driver.submit(PROMPT, max_tokens=LENGTH, priority=-1)
    driver.step_until(lambda: len(background.sink.tokens()) > 10)
    urgent = driver.submit("at once", max_tokens=LENGTH, priority=1)
    driver.run_to_the_end()
    assert complete(background)
    assert complete(urgent)
    assert n_drafted(driver) > LENGTH


def test_a_paused_answer_is_drafted_for_again(drafting: Driver) -> None:
    slow = drafting.submit(PROMPT, max_tokens=LENGTH)
    drafting.step_until(lambda: len(slow.sink.tokens()) > 10)
    drafting.stop_reading(slow)
    drafting.step_until(lambda: slow.request.paused)
    assert draft_context(drafting).open_seqs == []
    other, _ = asked(drafting, "another one")
    assert complete(other)
    assert slow.sink.tokens() == slow.expected


def test_short_drafts_may_be_refused(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, draft_min=40)
    tracked, _ = asked(driver)
    assert (tracked.sink.tokens(), n_drafted(driver)) == (tracked.expected, 0)


def test_an_improbable_token_ends_a_draft(make_driver: MakeDriver) -> None:
    n_steps = [asked(drafting_driver(make_driver, draft_p_min=p))[1] for p in (0.0, 0.2, 1.0)]
    assert n_steps[0] < n_steps[1] < n_steps[2]
    assert n_steps[2] >= LENGTH


def test_the_engine_may_be_closed_during_a_draft(drafting: Driver) -> None:
    tracked = drafted_first(drafting)
    drafting.engine.close()
    assert tracked.ending.finish_reason is FinishReason.CANCELLED
