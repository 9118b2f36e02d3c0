"""Every source of a cancel, at the level of the core. Each has done its work when its ``with`` block begins."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from pyllmcancel.cancellation import Cancellation, CancelReason
from pyllmcancel.requests.request import Request
from tests.races.phases import Case
from tests.support.driver import Driver, in_thread
from tests.support.fake_native import CancelFlag
from tests.support.step_gate import TEST_LIMIT


def wait_for_watcher(driver: Driver) -> None:
    """Return when the watcher has worked off what it was given before: a request without a client is cancelled last."""
    flag = CancelFlag()
    last = Request(Cancellation(flag))  # the watcher does not keep it alive
    driver.expire(last)
    assert flag.wait(TEST_LIMIT)


@contextmanager
def disconnect(driver: Driver, case: Case) -> Iterator[None]:
    """The reader is gone: it has dropped its stream."""
    tracked = case.tracked
    expected = contextlib.nullcontext() if tracked.ended else pytest.warns(ResourceWarning, match="dropped before")
    with expected:
        tracked.stream = None
    wait_for_watcher(driver)
    yield


@contextmanager
def stalled(driver: Driver, case: Case) -> Iterator[None]:
    """The reader takes nothing."""
    driver.engine.cancel(case.request, CancelReason.STALLED)
    yield


@contextmanager
def superseded(driver: Driver, case: Case) -> Iterator[None]:
    """A newer request of the key arrives."""
    newer = driver.submit("a newer prompt", supersede=case.request.supersede, settle=False)
    yield
    driver.settle()
    assert newer.request.supersede == case.request.supersede is not None


@contextmanager
def explicit(driver: Driver, case: Case) -> Iterator[None]:
    """A cancel by id."""
    driver.engine.cancel(case.request)
    yield


@contextmanager
def explicit_from_another_thread(driver: Driver, case: Case) -> Iterator[None]:
    with in_thread(lambda: driver.engine.cancel(case.request)):
        pass
    yield


@contextmanager
def explicit_twice(driver: Driver, case: Case) -> Iterator[None]:
    """The first reason wins."""
    assert driver.engine.cancel(case.request) == case.in_time
    assert not driver.engine.cancel(case.request, CancelReason.DISCONNECT)
    yield


@contextmanager
def explicit_by_session(driver: Driver, case: Case) -> Iterator[None]:
    """The session is cancelled."""
    assert case.request.session is not None
    driver.engine.cancel_session(case.request.session)
    yield


@contextmanager
def explicit_by_family(driver: Driver, case: Case) -> Iterator[None]:
    """The grandparent of the session is cancelled, which has no request of its own."""
    assert case.request.session is not None
    driver.engine.registry._families.declare("", "parent", "grandparent")
    assert driver.engine.cancel_session("grandparent") == []
    driver.engine.registry._families.declare("", case.request.session, "parent")
    driver.engine.cancel_session("grandparent")
    yield


@contextmanager
def deadline(driver: Driver, case: Case) -> Iterator[None]:
    """The request's time is up."""
    driver.expire(case.request)
    wait_for_watcher(driver)
    yield


@contextmanager
def shutdown(driver: Driver, case: Case) -> Iterator[None]:
    """The engine is closed, by another thread."""
    live = driver.engine.registry.requests()
    with in_thread(driver.engine.close):
        assert all(request.cancellation.flag.wait(TEST_LIMIT) for request in live)
        driver.gate.open()
        yield


Source = Callable[[Driver, Case], AbstractContextManager[None]]

REASONS: dict[Source, CancelReason] = {
    disconnect: CancelReason.DISCONNECT,
    stalled: CancelReason.STALLED,
    superseded: CancelReason.SUPERSEDED,
    explicit: CancelReason.EXPLICIT,
    explicit_from_another_thread: CancelReason.EXPLICIT,
    explicit_twice: CancelReason.EXPLICIT,
    explicit_by_session: CancelReason.EXPLICIT,
    explicit_by_family: CancelReason.EXPLICIT,
    deadline: CancelReason.DEADLINE,
    shutdown: CancelReason.SHUTDOWN,
}
