"""An engine's observers get each event of a request once, and one that fails harms nobody."""

from __future__ import annotations

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import Ending, FinishReason
from pyllmcancel.requests.observer import NullObserver, Observers, StepRecord
from pyllmcancel.requests.request import Request
from tests.support.driver import Driver, Watcher, complete


class Failing(NullObserver):
    """Fails at every event of a request."""

    def __init__(self) -> None:
        self.n_calls = 0

    def _fail(self) -> None:
        self.n_calls += 1
        raise MemoryError

    def request_added(self, request: Request) -> None:
        self._fail()

    def request_admitted(self, request: Request) -> None:
        self._fail()

    def request_cancelled(self, request: Request) -> None:
        self._fail()

    def request_ended(self, request: Request, ending: Ending) -> None:
        self._fail()


def test_admissions_and_cancels_are_told_once_each(driver: Driver) -> None:
    tracked = driver.submit()
    driver.step()
    driver.cancel(tracked)
    driver.cancel(tracked)
    request_id = tracked.request.id
    assert (driver.watcher.admitted, driver.watcher.cancelled) == ([request_id], [request_id])


def test_a_request_with_several_choices_is_admitted_once(driver: Driver) -> None:
    tracked = driver.answered(n=2)
    assert driver.watcher.admitted == [tracked.request.id]


def test_a_request_that_is_cancelled_while_it_waits_is_never_admitted(driver: Driver) -> None:
    running = [driver.submit(max_tokens=100) for _ in range(driver.config.parallel)]
    driver.step()
    waiting = driver.submit()
    driver.cancel(waiting)
    assert driver.watcher.admitted == [one.request.id for one in running]
    assert driver.watcher.cancelled == [waiting.request.id]


@pytest.mark.parametrize("steps", [0, 2])
def test_a_superseded_request_is_told_as_cancelled(driver: Driver, steps: int) -> None:
    old = driver.submit(supersede="key", max_tokens=100)
    driver.step(steps)
    driver.answered(supersede="key")
    assert driver.watcher.cancelled == [old.request.id]
    assert old.ending.cancel_reason is CancelReason.SUPERSEDED


def test_a_request_that_was_held_is_told_as_added_and_cancelled(driver: Driver) -> None:
    driver.engine.registry.find("held", hold=60.0)
    held = driver.submit(request_id="held")
    assert (driver.watcher.added, driver.watcher.cancelled) == (["held"], ["held"])
    assert held.ending.cancel_reason is CancelReason.EXPLICIT


def test_deadlines_and_the_shutdown_are_cancels_too(driver: Driver) -> None:
    late, last = driver.submit(max_tokens=100), driver.submit(max_tokens=100)
    driver.expire(late)
    assert late.ending.cancel_reason is CancelReason.DEADLINE
    driver.gate.open()
    driver.engine.close()
    assert last.ended
    assert driver.watcher.cancelled[0] == late.request.id
    assert len(driver.watcher.cancelled) <= 2, "one that had ended by itself is not cancelled"


def test_an_observer_that_fails_harms_neither_requests_nor_other_observers(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = Failing(), Watcher()
    driver.engine.add_observer(failing)
    driver.engine.add_observer(other)
    tracked = driver.submit()
    left = driver.submit(max_tokens=100)
    driver.cancel(left)
    driver.run_to_the_end()
    assert complete(tracked)
    assert left.ending.finish_reason is FinishReason.CANCELLED
    assert other.added == [tracked.request.id, left.request.id]
    assert len(other.endings) == 2
    assert failing.n_calls == caplog.text.count("an observer failed") > 0


def test_steps_name_the_slot_and_the_owner_of_each_sequence(driver: Driver) -> None:
    ann, bob = driver.submit(owner="ann", max_tokens=9), driver.submit(owner="bob", max_tokens=9)
    slots = {one.request.id: one.request.choices[0].seq for one in (ann, bob)}
    driver.step()
    parts = [part for record in driver.watcher.steps for part in record.sequences]
    assert {(part.request, part.slot, part.owner) for part in parts} <= {
        (one.request.id, slots[one.request.id], owner) for one, owner in ((ann, "ann"), (bob, "bob"))
    }
    assert parts


def test_one_that_was_taken_away_is_told_no_more() -> None:
    first, second = Watcher(), Watcher()
    observers = Observers(first)
    observers.add(second)
    observers.step_done(StepRecord(1, 0.0, 0.1, (), "ok"), 0)
    observers.remove(second)
    observers.remove(second)
    observers.step_done(StepRecord(2, 0.1, 0.1, (), "ok"), 0)
    assert ([record.number for record in first.steps], [record.number for record in second.steps]) == ([1, 2], [1])


def test_what_a_cancelled_request_did_not_compute_is_known(driver: Driver) -> None:
    tracked = driver.submit([1] * 20, max_tokens=10)
    assert tracked.request.n_uncomputed(2) == 30
    driver.step_until(lambda: len(tracked.request.choices[0].generated) == 3)
    assert tracked.request.n_uncomputed(2) == 7
    driver.run_to_the_end()
    assert tracked.request.n_uncomputed(2) == 0
