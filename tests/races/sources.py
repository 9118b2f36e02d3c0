"""Every source of a cancel, at the level of the core. Each has done its work when its ``with`` block begins."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps

import pytest

from pyllmcancel.cancellation import Cancellation, CancelReason
from pyllmcancel.requests.request import Request
from tests.races.phases import Case
from tests.support.driver import Driver, cancel_session, in_thread
from tests.support.fake_native import CancelFlag
from tests.support.step_gate import TEST_LIMIT

Source = Callable[[Driver, Case], AbstractContextManager[None]]


def at_once(act: Callable[[Driver, Case], None]) -> Source:
    """Make a source of a function that does all of its work before the block."""

    @contextmanager
    @wraps(act)
    def source(driver: Driver, case: Case) -> Iterator[None]:
        act(driver, case)
        yield

    return source


def wait_for_watcher(driver: Driver) -> None:
    """Return when the watcher has worked off what it was given before: a request without a client is cancelled last."""
    flag = CancelFlag()
    last = Request(Cancellation(flag))  # the watcher does not keep it alive
    driver.expire(last)
    assert flag.wait(TEST_LIMIT)


@at_once
def disconnect(driver: Driver, case: Case) -> None:
    """The reader is gone: it has dropped its stream."""
    tracked = case.tracked
    expected = contextlib.nullcontext() if tracked.ended else pytest.warns(ResourceWarning, match="dropped before")
    with expected:
        tracked.stream = None
    wait_for_watcher(driver)


@at_once
def stalled(driver: Driver, case: Case) -> None:
    """The reader takes nothing."""
    driver.engine.cancel(case.request, CancelReason.STALLED)


@contextmanager
def superseded(driver: Driver, case: Case) -> Iterator[None]:
    """A newer request of the key arrives."""
    newer = driver.submit("a newer prompt", supersede=case.request.supersede, settle=False)
    yield
    driver.settle()
    assert newer.request.supersede == case.request.supersede is not None


@at_once
def explicit(driver: Driver, case: Case) -> None:
    """A cancel by id."""
    driver.engine.cancel(case.request)


@at_once
def explicit_from_another_thread(driver: Driver, case: Case) -> None:
    with in_thread(lambda: driver.engine.cancel(case.request)):
        pass


@at_once
def explicit_twice(driver: Driver, case: Case) -> None:
    """The first reason wins."""
    assert driver.engine.cancel(case.request) == case.in_time
    assert not driver.engine.cancel(case.request, CancelReason.DISCONNECT)


@at_once
def explicit_by_session(driver: Driver, case: Case) -> None:
    """The session is cancelled."""
    cancel_session(driver.engine, case.request.session)


@at_once
def explicit_by_family(driver: Driver, case: Case) -> None:
    """The grandparent of the session is cancelled, which has no request of its own."""
    driver.engine.registry._families.declare("", "parent", "grandparent")
    assert cancel_session(driver.engine, "grandparent") == []
    driver.engine.registry._families.declare("", case.request.session, "parent")
    cancel_session(driver.engine, "grandparent")


@at_once
def deadline(driver: Driver, case: Case) -> None:
    """The request's time is up."""
    driver.expire(case.request)
    wait_for_watcher(driver)


@contextmanager
def shutdown(driver: Driver, case: Case) -> Iterator[None]:
    """The engine is closed, by another thread."""
    live = driver.engine.registry.requests()
    with in_thread(driver.engine.close):
        assert all(request.cancellation.flag.wait(TEST_LIMIT) for request in live)
        driver.gate.open()
        yield


REASONS: dict[Source, CancelReason] = {
    disconnect: CancelReason.DISCONNECT,
    stalled: CancelReason.STALLED,
    superseded: CancelReason.SUPERSEDED,
    **dict.fromkeys((explicit, explicit_from_another_thread, explicit_twice), CancelReason.EXPLICIT),
    **dict.fromkeys((explicit_by_session, explicit_by_family), CancelReason.EXPLICIT),
    deadline: CancelReason.DEADLINE,
    shutdown: CancelReason.SHUTDOWN,
}
