"""An engine's observers get each event of a request once, and one that fails harms nobody."""

import pytest

from pyllmcancel.events import Ending, FinishReason
from pyllmcancel.requests.observer import NullObserver
from pyllmcancel.requests.request import Request
from tests.support.driver import Driver, Watcher, complete


class Failing(NullObserver):
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


def test_a_failing_observer_harms_neither_requests_nor_others(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
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
