"""The engine thread runs out of memory in any call that it makes, the last ones too: every request has one ending."""

import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pyllmcancel
from pyllmcancel.engine.loop import EngineLoop
from pyllmcancel.errors import EngineDiedError
from pyllmcancel.events import Ending
from tests.support.driver import Driver, Tracked
from tests.support.step_gate import TEST_LIMIT

PACKAGE = str(Path(pyllmcancel.__file__).parent)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Keep the collector from running in the engine's thread: a finalizer of what another test left cannot raise."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Fault:
    """Lets one call of a function of ours, in the thread that arms it, find no memory.

    That is the `number`-th one of the calls that count: of the calls from one place in the code, the first two.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.where: str | None = None
        self._seen = Counter[object]()

    def arm(self) -> None:
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        # A generator is entered once more when it is dropped, and nothing can be raised then.
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_flags & inspect.CO_GENERATOR:
            return
        place = (code, caller and caller.f_lineno)
        self._seen[place] += 1
        if self._seen[place] <= 2:
            self.left -= 1
            if self.left == 0:
                self.where = code.co_qualname
                raise MemoryError  # which ends the tracing


def armed(function: Callable[..., None], fault: Fault) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        if fault.where is None:
            fault.arm()
        try:
            function(*arguments)
        finally:
            sys.settrace(None)

    return call


def crowd(driver: Driver) -> list[Tracked]:
    """Requests that run, wait, are superseded, cancelled while they wait and while they run, and finish."""
    requests = [
        driver.submit("several choices", n=2, max_tokens=3, settle=False),
        driver.submit("a prompt of more than one step", supersede="s", settle=False),
        driver.submit("supersedes it", supersede="s", max_tokens=2, settle=False),
        driver.submit("is cancelled", settle=False),
        driver.submit("waits", max_tokens=1, settle=False),
    ]
    driver.engine.cancel(requests[3].request)
    return requests


def assert_all_ended(driver: Driver, requests: list[Tracked], fault: Fault) -> None:
    for tracked in requests:
        assert tracked.request.ended.result(TEST_LIMIT) is not None, f"it has no ending: {fault.where}"
    driver.engine.close()
    for tracked in requests:
        told = [tracked.sink.events.get_nowait() for _ in range(tracked.sink.events.qsize())]
        assert told[-1] is tracked.ending, f"it was not told, or told more: {fault.where}"
        assert [event for event in told if isinstance(event, Ending)] == [tracked.ending], fault.where


def live_through(fault: Fault, on_step_done: Callable[[object], None]) -> None:
    """A short life, with the fault in it."""
    driver = Driver(parallel=2)
    driver.watcher.on_step_done = on_step_done
    try:
        try:
            requests = crowd(driver)
        except EngineDiedError:
            requests = driver.tracked  # it did not live to see the others
        driver.gate.open()
        assert_all_ended(driver, requests, fault)
        if driver.engine.failure is not None:
            with pytest.raises(EngineDiedError):
                driver.submit("too late")
    finally:
        driver.close()


def n_lives(monkeypatch: pytest.MonkeyPatch, name: str, on_step_done: Any = lambda _: None) -> int:
    """Live again and again, until no call in this function of the loop has a fault any more; return how often."""
    function, number, fault = getattr(EngineLoop, name), 0, None
    while fault is None or fault.where is not None:
        number += 1
        fault = Fault(number)
        monkeypatch.setattr(EngineLoop, name, armed(function, fault))
        live_through(fault, on_step_done)
    return number


@pytest.mark.long
def test_an_engine_that_dies_in_any_call_ends_every_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert n_lives(monkeypatch, "run") > 100, "there was a call that found memory, and it lived on"


def test_an_engine_that_fails_in_its_last_calls_too_ends_every_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: object) -> None:
        raise ZeroDivisionError

    assert n_lives(monkeypatch, "bury", die) > 20, "there was a call that found memory"
