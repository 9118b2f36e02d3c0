"""The thread that cancels what is late and what was dropped."""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from pyllmcancel import reaper as reaper_module
from pyllmcancel.cancellation import CancelReason
from pyllmcancel.reaper import FEW, Reaper
from pyllmcancel.request import Ending, FinishReason, Request, RequestStatus, Usage
from tests.support.bare import bare_request
from tests.support.step_gate import TEST_LIMIT


class Cancelled(queue.SimpleQueue):
    """What the reaper has cancelled: pairs of id and reason, in order."""

    def cancel(self, request: Request, reason: CancelReason) -> None:
        self.put((request.id, reason))

    def next(self) -> tuple[str, CancelReason]:
        return self.get(timeout=TEST_LIMIT)


@pytest.fixture
def cancelled() -> Cancelled:
    return Cancelled()


@pytest.fixture
def reaper(cancelled: Cancelled) -> Iterator[Reaper]:
    reaper = Reaper(cancelled.cancel)
    yield reaper
    reaper.close()


def test_a_deadline_that_has_passed_cancels_at_once(reaper: Reaper, cancelled: Cancelled) -> None:
    request = bare_request("late")
    reaper.at_deadline(request, time.monotonic() - 1.0)
    assert cancelled.next() == ("late", CancelReason.DEADLINE)


def test_a_deadline_cancels_when_its_time_has_come_and_not_before(reaper: Reaper, cancelled: Cancelled) -> None:
    request, at = bare_request("soon"), time.monotonic() + 0.02
    reaper.at_deadline(request, at)
    assert cancelled.next() == ("soon", CancelReason.DEADLINE)
    assert time.monotonic() >= at


@dataclass(slots=True)
class Clock:
    """The reaper's. It stands still until a test sets it: on a busy machine a hundredth of a second is over at once."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reaper_module, "time", clock)
    return clock


def wait_until_told(reaper: Reaper, cancelled: Cancelled) -> None:
    """Return when the reaper knows all that it was told before."""
    marker = bare_request("marker")
    reaper.abandoned(marker)
    assert cancelled.next()[0] == "marker"


def test_deadlines_come_in_the_order_of_their_times(clock: Clock, reaper: Reaper, cancelled: Cancelled) -> None:
    first, second = bare_request("first"), bare_request("second")
    reaper.at_deadline(second, 0.02)
    reaper.at_deadline(first, 0.01)
    wait_until_told(reaper, cancelled)
    clock.now = 1.0
    assert [cancelled.next()[0] for _ in range(2)] == ["first", "second"]


def test_a_dropped_request_is_cancelled_as_disconnected(reaper: Reaper, cancelled: Cancelled) -> None:
    request = bare_request("dropped")
    reaper.abandoned(request)
    assert cancelled.next() == ("dropped", CancelReason.DISCONNECT)


def test_a_request_that_is_gone_is_left_in_peace(clock: Clock, reaper: Reaper, cancelled: Cancelled) -> None:
    request, other = bare_request("gone"), bare_request("other")
    reaper.at_deadline(request, 0.01)
    reaper.at_deadline(other, 0.02)
    wait_until_told(reaper, cancelled)
    del request
    gc.collect()
    clock.now = 1.0
    assert cancelled.next()[0] == "other"


def test_an_appointment_does_not_keep_a_request_alive(reaper: Reaper, cancelled: Cancelled) -> None:
    request = bare_request("r")
    finalised = []
    import weakref

    weakref.finalize(request, finalised.append, True)
    reaper.at_deadline(request, time.monotonic() + 3600.0)
    del request
    gc.collect()
    assert finalised == [True]


@pytest.mark.parametrize("seconds", [1e12, float("inf")])
def test_a_deadline_in_the_far_future_does_not_stop_the_reaper(
    reaper: Reaper, cancelled: Cancelled, seconds: float
) -> None:
    far, near = bare_request("far"), bare_request("near")
    reaper.at_deadline(far, time.monotonic() + seconds)
    reaper.abandoned(near)
    reaper.abandoned(near)
    assert [cancelled.next()[0] for _ in range(2)] == ["near", "near"]


def test_a_closed_reaper_cancels_no_more_and_can_be_closed_again(cancelled: Cancelled) -> None:
    reaper = Reaper(cancelled.cancel)
    reaper.close()
    reaper.abandoned(bare_request("late"))
    reaper.close()
    assert cancelled.empty()


def end(request: Request) -> None:
    request.ended.set_result(Ending(FinishReason.STOP, Usage(), RequestStatus.DECODE))


def test_deadlines_of_ended_requests_do_not_pile_up(reaper: Reaper, cancelled: Cancelled) -> None:
    live, ended = [bare_request("live") for _ in range(10)], [bare_request("ended") for _ in range(1000)]
    for request in (*live, *ended):
        reaper.at_deadline(request, time.monotonic() + 3600.0)
        if request in ended:
            end(request)
    reaper.abandoned(live[0])
    assert cancelled.next() == ("live", CancelReason.DISCONNECT)
    assert len(live) <= reaper.n_appointments <= 2 * (len(live) + FEW)


def test_a_cancel_that_fails_does_not_keep_others_from_their_deadlines(
    cancelled: Cancelled, caplog: pytest.LogCaptureFixture
) -> None:
    def cancel(request: Request, reason: CancelReason) -> None:
        if request.id == "unlucky":
            raise MemoryError
        cancelled.cancel(request, reason)

    reaper = Reaper(cancel)
    unlucky, next_one = bare_request("unlucky"), bare_request("next")
    reaper.abandoned(unlucky)
    reaper.abandoned(next_one)
    assert cancelled.next()[0] == "next"
    assert "request unlucky could not be cancelled" in caplog.text
    reaper.close()
