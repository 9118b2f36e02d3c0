"""The requests that the engine accepts and refuses, its messages and observers, and clients that leave."""

import logging
import re
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.choices import MAX_CHOICES
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, RequestCancelled
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.observer import Observer
from tests.support import fake_model, fake_native
from tests.support.driver import Driver, MakeDriver, RecordingSink, Watcher, complete

REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an empty prompt": ([], {}, "prompt"),
    "a prompt as long as the context": ([1] * 512, {}, "prompt"),
    "an unknown token": ([1, 10_000], {}, "prompt"),
    "no choices": ([1], {"n": 0}, "n"),
    "too many choices": ([1], {"n": MAX_CHOICES + 1}, "n"),
    "no tokens": ([1], {"max_tokens": -1}, "max_tokens"),
    "a negative timeout": ([1], {"timeout": -1.0}, "timeout"),
    "a timeout that is no number": ([1], {"timeout": float("nan")}, "timeout"),
    "a grammar without a root": ([1], {"grammar": 'foo ::= "a"'}, "grammar"),
}


@pytest.mark.parametrize(("prompt", "options", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_never_be_served_is_refused_and_changes_nothing(
    driver: Driver, prompt: list[int], options: dict[str, Any], param: str
) -> None:
    key_holder = driver.submit(supersede="s")
    counts = driver.engine.counts()
    with pytest.raises(InvalidRequestError) as caught:
        driver.submit(prompt, supersede="s", **options)
    assert caught.value.param == param
    assert driver.engine.counts() == counts
    assert key_holder.request.live
    driver.run_to_the_end()
    assert complete(key_holder)


def test_a_closed_engine_refuses(driver: Driver) -> None:
    driver.engine.close()
    with pytest.raises(EngineClosedError):
        driver.submit()


def test_no_more_samplers_are_made_for_a_request_that_is_cancelled(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, made = driver.engine.workload.request(), []

    def sampler(*arguments: Any) -> fake_model.Sampler:
        made.append(fake_model.Sampler(*arguments))
        request.cancellation.request(CancelReason.DISCONNECT)
        return made[-1]

    monkeypatch.setattr(fake_native, "Sampler", sampler)
    with pytest.raises(RequestCancelled):
        driver.engine.fill(request, [[1], [2]], generation_params(n=2), RecordingSink())
    assert len(made) == 1


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [re.sub(r"[\d.]+ (ms|s)\b", r"… \1", record.getMessage()) for record in caplog.records]


def test_the_log_tells_the_story_of_a_superseded_request(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pyllmcancel.engine"):
        driver.submit([1] * 40, session="editor", supersede="editor", request_id="old")
        driver.step()
        driver.answered([2] * 5, session="editor", supersede="editor", request_id="new", max_tokens=2)
    said = "\n".join(lines(caplog))
    assert "request old added, owner -, session editor, 40 prompt tokens, waiting" in said
    assert "request new added, owner -, session editor, 5 prompt tokens, waiting" in said
    (cancelled,) = [line for line in lines(caplog) if "cancelled" in line]
    told = "request old cancelled (superseded by new) in prefill after 16 of 40 tokens, stopped in … ms"
    assert cancelled.startswith(told)
    (finished,) = [line for line in lines(caplog) if "finished" in line]
    assert "request new finished (length): 5 prompt tokens, 0 cached, 2 generated" in finished
    assert finished.endswith("waiting 0, running 0")


class Failing(Observer):
    def __init__(self) -> None:
        self.n_calls = 0

    def _fail(self, *_: object) -> None:
        self.n_calls += 1
        raise MemoryError

    request_added = request_admitted = request_cancelled = request_ended = _fail


def test_admissions_and_cancels_are_told_once_each_and_none_of_one_that_never_ran(driver: Driver) -> None:
    first, second = driver.submit(n=2, max_tokens=100), driver.submit(max_tokens=100)
    driver.step()
    waiting = driver.submit()
    for tracked in (waiting, first, first):
        driver.cancel(tracked)
    assert driver.watcher.cancelled == [waiting.request.id, first.request.id]
    driver.cancel(second)
    assert sorted(driver.watcher.admitted) == sorted([first.request.id, second.request.id])


def test_a_failing_observer_harms_neither_requests_nor_others(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Failing(), Watcher()
    driver.engine.add_observer(failing)
    driver.engine.add_observer(other)
    tracked = driver.submit()
    left = driver.submit(max_tokens=100)
    driver.cancel(left)
    driver.run_to_the_end()
    assert left.ending.finish_reason is FinishReason.CANCELLED
    assert other.added == [tracked.request.id, left.request.id]
    assert len(other.endings) == 2
    assert failing.n_calls == caplog.text.count("an observer failed") > 0


def test_a_step_that_was_planned_and_not_computed_takes_no_turn(make_driver: MakeDriver) -> None:
    """Prompts and decodes take turns: it is the decodes' turn still when the client of one leaves as late as can be."""
    driver = make_driver(memory_kind="recurrent", parallel=3)
    stays, leaves = (driver.submit(prompt, max_tokens=30) for prompt in ("stays", "leaves"))
    driver.step_until(lambda: bool(stays.sink.deltas and leaves.sink.deltas))
    prompt = driver.submit("a prompt of many steps" * 10)
    driver.step_until(lambda: driver.holds(prompt))
    scheduler = driver.engine.workload.scheduler
    maintain = scheduler.maintain
    scheduler.maintain = lambda: (setattr(leaves.client, "left", True), maintain())  # type: ignore[method-assign]
    driver.step()
    assert leaves.ending.cancel_reason is CancelReason.DISCONNECT
    assert driver.holds(stays)
    assert not driver.holds(prompt)
