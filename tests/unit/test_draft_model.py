"""A draft model in the engine: it changes how many steps an answer takes; its cancels and failures cost drafts only."""

import logging
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pyllmcancel.engine.draft_loading import FIRST_COMPARED, MAX_SIZE_DIFFERENCE, vocabulary_difference
from pyllmcancel.engine.draft_model import MAX_FAILURES
from pyllmcancel.errors import Error
from pyllmcancel.events import FinishReason
from pyllmcancel.step import StepItem, StepResult, StepStatus
from tests.support import fake_native
from tests.support.driver import Driver, MakeDriver, Tracked, complete, recorded_steps
from tests.unit.test_drafts import PROMPT, asked

LENGTH = 60


def recorded_drafts(driver: Driver) -> list[list[StepItem]]:
    return recorded_steps(driver.draft_context)


def n_tokens(steps: list[list[StepItem]]) -> int:
    return sum(item.n_tokens for items in steps for item in items)


def drafting_driver(make_driver: MakeDriver, **options: Any) -> Driver:
    """A driver with a draft model that agrees with the model, and no other source of drafts."""
    return make_driver(**{"draft": fake_native.Model(), "draft_sources": ("model",)} | options)


@pytest.fixture
def drafting(make_driver: MakeDriver) -> Driver:
    return drafting_driver(make_driver)


def n_drafted(driver: Driver) -> int:
    return sum(part.n_drafted for step in driver.watcher.steps for part in step.sequences)


def drafted_first(driver: Driver) -> Tracked:
    """Submit a request, and go on until its first draft is about to be computed."""
    tracked = driver.submit(PROMPT, max_tokens=LENGTH)
    gate = driver.draft_context.gate
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
    gate = drafting.draft_context.gate
    for _ in range(n_before):
        gate.let_through()
        gate.wait_held()
    n_steps, n_draft_steps = len(drafting.watcher.steps), len(steps)
    assert drafting.engine.cancel(tracked.request)
    assert tracked.ending.finish_reason is FinishReason.CANCELLED
    assert (len(drafting.watcher.steps), len(steps)) == (n_steps, n_draft_steps)
    gate.open()
    asked(drafting)


def test_nothing_is_drafted_for_a_client_that_has_left(drafting: Driver) -> None:
    steps = recorded_drafts(drafting)
    tracked = drafted_first(drafting)
    n_steps, n_draft_steps = len(drafting.watcher.steps), len(steps)
    tracked.client.left = True
    drafting.draft_context.gate.let_through()
    assert tracked.ending.finish_reason is FinishReason.CANCELLED
    assert (len(drafting.watcher.steps), len(steps)) == (n_steps, n_draft_steps)


@pytest.mark.parametrize("n_before", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("status", "why"),
    [
        (StepStatus.NO_ROOM, "its context has no room"),
        (StepStatus.FAILED_ALLOC, "its step failed (failed_alloc)"),
        (StepStatus.FAILED_COMPUTE, "its step failed (failed_compute)"),
    ],
)
def test_a_failed_step_costs_an_answer_its_drafts(
    drafting: Driver, caplog: pytest.LogCaptureFixture, status: StepStatus, why: str, n_before: int
) -> None:
    drafting.draft_context.next_status.extend([StepStatus.OK] * n_before + [status])
    with caplog.at_level(logging.WARNING):
        tracked, _ = asked(drafting)
    (line,) = [record.message for record in caplog.records if "draft model" in record.message]
    assert line == f"request {tracked.request.id} goes on without the draft model: {why}"
    # The next answer has drafts again.
    _, n_steps = asked(drafting, "another prompt, of no such length")
    assert n_steps < LENGTH / 2


def test_a_model_that_keeps_failing_is_not_used_any_more(drafting: Driver, caplog: pytest.LogCaptureFixture) -> None:
    steps = recorded_drafts(drafting)
    drafting.draft_context.next_status.extend([StepStatus.FAILED_COMPUTE] * 100)
    with caplog.at_level(logging.WARNING):
        for number in range(MAX_FAILURES + 2):
            asked(drafting, f"prompt {number}", max_tokens=20)
    assert len(steps) == MAX_FAILURES
    assert "not used any more" in caplog.text
    assert drafting.draft_context.n_cells_used == 0


@pytest.mark.parametrize("call", ["step", "before_open"])
@pytest.mark.parametrize("error", [MemoryError(), Error("of the test")])
def test_an_exception_costs_an_answer_its_drafts(
    drafting: Driver, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    def failing(*_: Any, **__: Any) -> StepResult:
        monkeypatch.undo()
        raise error

    monkeypatch.setattr(drafting.draft_context, call, failing)
    asked(drafting)
    assert n_drafted(drafting) == 0


def test_a_context_without_room_costs_answers_their_drafts(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, n_ctx=128)
    driver.draft_context.lose_cells(100)
    for prompt in (PROMPT, "another prompt"):
        asked(driver, prompt)


def test_idle_prefixes_give_way(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, n_ctx=160)
    for number in range(4):
        _, n_steps = asked(driver, f"{number} {PROMPT}")
        assert n_steps < LENGTH / 2


def test_no_drafts_beyond_the_draft_models_context(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, draft=fake_native.Model(n_ctx_train=64))
    steps = recorded_drafts(driver)
    asked(driver, max_tokens=100)
    assert 0 < n_tokens(steps) < 100


@pytest.mark.parametrize(
    ("options", "goes_on"),
    [({"owner": "alice"}, True), ({"owner": "bob"}, False), ({"owner": "alice", "reuse_prefix": False}, False)],
)
def test_an_owner_goes_on_from_its_own_tokens_and_nobody_else_does(
    drafting: Driver, options: dict[str, Any], goes_on: bool
) -> None:
    first, _ = asked(drafting, owner="alice")
    longer = [*PROMPT.encode(), *first.sink.tokens()]
    steps = recorded_drafts(drafting)
    asked(drafting, longer, max_tokens=8, **options)
    assert n_tokens(steps) < len(longer) / 2 if goes_on else n_tokens(steps) > len(longer)


@pytest.mark.parametrize("kv_unified", [True, False])
def test_a_preempted_answer_is_drafted_for_again(make_driver: MakeDriver, kv_unified: bool) -> None:
    driver = drafting_driver(make_driver, parallel=1, kv_unified=kv_unified)
    background = driver.submit(PROMPT, max_tokens=LENGTH, priority=-1)
    driver.step_until(lambda: len(background.sink.tokens()) > 10)
    driver.submit("at once", max_tokens=LENGTH, priority=1)
    driver.run_to_the_end()
    assert n_drafted(driver) > LENGTH


def test_a_paused_answer_is_drafted_for_again(drafting: Driver) -> None:
    slow = drafting.submit(PROMPT, max_tokens=LENGTH)
    drafting.step_until(lambda: len(slow.sink.tokens()) > 10)
    drafting.stop_reading(slow)
    drafting.step_until(lambda: slow.request.paused)
    assert drafting.draft_context.open_seqs == []
    asked(drafting, "another one")
    assert complete(slow)


def test_short_drafts_may_be_refused(make_driver: MakeDriver) -> None:
    driver = drafting_driver(make_driver, draft_min=40)
    asked(driver)
    assert n_drafted(driver) == 0


def test_an_improbable_token_ends_a_draft(make_driver: MakeDriver) -> None:
    n_steps = [asked(drafting_driver(make_driver, draft_p_min=p))[1] for p in (0.0, 0.2, 1.0)]
    assert n_steps[0] < n_steps[1] < n_steps[2]
    assert n_steps[2] >= LENGTH


N_TOKENS = 1000


@dataclass
class Vocabulary:
    """As much of a model as is compared."""

    texts: list[bytes] = field(default_factory=lambda: [b"token %d" % i for i in range(N_TOKENS)])
    metadata: dict[str, str] = field(default_factory=lambda: {"tokenizer.ggml.model": "gpt2"})
    special_tokens: dict[str, int] = field(default_factory=lambda: {"bos": 1, "eos": 2})
    adds_bos: bool = True

    @property
    def n_vocab(self) -> int:
        return len(self.texts)

    def pieces(self, *, special: bool = False) -> list[bytes]:
        assert special
        return self.texts


def difference(draft: Vocabulary) -> str | None:
    return vocabulary_difference(cast("Any", Vocabulary()), cast("Any", draft))


def renamed(token: int) -> Vocabulary:
    found = Vocabulary()
    found.texts[token] = b"another \xff"
    return found


def longer(by: int) -> Vocabulary:
    found = Vocabulary()
    found.texts = [*found.texts, *[b"unused"] * by] if by > 0 else found.texts[:by]
    return found


@pytest.mark.parametrize(
    "draft",
    [
        Vocabulary(),
        longer(MAX_SIZE_DIFFERENCE),
        longer(-MAX_SIZE_DIFFERENCE),
        renamed(FIRST_COMPARED - 1),
        Vocabulary(special_tokens={"bos": 1, "eos": 3}),  # which no text gets by itself
    ],
    ids=["the same", "longer", "shorter", "unused token", "another end"],
)
def test_small_differences_do_not_matter(draft: Vocabulary) -> None:
    assert difference(draft) is None


@pytest.mark.parametrize(
    ("draft", "told"),
    [
        (longer(MAX_SIZE_DIFFERENCE + 1), "its vocabulary has 1,129 tokens, and the model's has 1,000"),
        (longer(-MAX_SIZE_DIFFERENCE - 1), "its vocabulary has 871 tokens, and the model's has 1,000"),
        (renamed(FIRST_COMPARED), r"its token 5 is 'another \\xff', and the model's is 'token 5'"),
        (renamed(N_TOKENS - 1), r"its token 999 is 'another \\xff', and the model's is 'token 999'"),
        (Vocabulary(metadata={"tokenizer.ggml.model": "llama"}), "its tokenizer is llama, and the model's is gpt2"),
        (
            Vocabulary(special_tokens={"bos": 7, "eos": 2}),
            "its bos token is 7, added to texts, and the model's is 1, added to texts",
        ),
        (Vocabulary(adds_bos=False), "its bos token is 1, not added to texts, and the model's is 1, added to texts"),
        (
            Vocabulary(metadata={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.add_eos_token": "true"}),
            "its eos token is 2, added to texts, and the model's is 2, not added to texts",
        ),
    ],
    ids=["too long", "too short", "token", "last token", "kind", "begin", "no begin", "an end"],
)
def test_others_are_said(draft: Vocabulary, told: str) -> None:
    assert difference(draft) == told
