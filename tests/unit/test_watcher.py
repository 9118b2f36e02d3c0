"""The thread that cancels what is late and what was dropped."""

import gc
import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.events import Ending, FinishReason, RequestStatus, Usage
from pyllmcancel.requests import watcher as watcher_module
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.watcher import FEW, Watcher
from tests.support.bare_requests import bare_request
from tests.support.driver import LeavingClient
from tests.support.step_gate import TEST_LIMIT


class Cancelled(queue.SimpleQueue):
    """The requests that the watcher has cancelled: pairs of id and reason, in order."""

    def cancel(self, request: Request, reason: CancelReason, _deadline: Deadline | None = None) -> None:
        self.put((request.id, reason))

    def next(self) -> tuple[str, CancelReason]:
        return self.get(timeout=TEST_LIMIT)


@pytest.fixture
def cancelled() -> Cancelled:
    return Cancelled()


@pytest.fixture
def watcher(cancelled: Cancelled) -> Iterator[Watcher]:
    watcher = Watcher(cancelled.cancel)
    yield watcher
    watcher.close()


def test_a_deadline_cancels_when_its_time_has_come_and_not_before(watcher: Watcher, cancelled: Cancelled) -> None:
    request, at = bare_request("soon"), time.monotonic() + 0.02
    watcher.at_deadline(request, at)
    assert cancelled.next() == ("soon", CancelReason.DEADLINE)
    assert time.monotonic() >= at


@dataclass(slots=True)
class Clock:
    """The watcher's. It stands still until a test sets it: on a busy machine a hundredth of a second is soon over."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watcher_module, "time", clock)
    return clock


def wait_until_told(watcher: Watcher, cancelled: Cancelled, after: Sequence[str] = ()) -> None:
    """Return when the watcher has handled all earlier calls, and has cancelled these requests and no others."""
    marker = bare_request("marker")  # the watcher does not keep it
    watcher.dropped(marker)
    found = [cancelled.next()[0] for _ in range(len(after) + 1)]
    assert sorted(found) == [*after, "marker"]


def test_deadlines_come_in_the_order_of_their_times(clock: Clock, watcher: Watcher, cancelled: Cancelled) -> None:
    first, second = bare_request("first"), bare_request("second")
    watcher.at_deadline(second, 0.02)
    watcher.at_deadline(first, 0.01)
    wait_until_told(watcher, cancelled)
    clock.now = 1.0
    assert [cancelled.next()[0] for _ in range(2)] == ["first", "second"]


def test_the_time_in_the_queue_ends_with_the_first_slot_and_silence_begins_with_the_first_token(
    clock: Clock, watcher: Watcher, cancelled: Cancelled
) -> None:
    started, waiting, silent, talking = (bare_request(name, arrived_at=0.0) for name in "abcd")
    started.admitted_at = 1.0
    silent.choices[0].last_token_at, talking.choices[0].last_token_at = 0.0, 1.0
    watcher.at_deadline(started, 1.0, Deadline.QUEUE)
    watcher.at_deadline(waiting, 1.0, Deadline.QUEUE)
    for request in (started, silent, talking):
        watcher.at_deadline(request, 1.0, Deadline.IDLE)
    clock.now = 1.5
    wait_until_told(watcher, cancelled, after=["b", "c"])
    clock.now = 2.1
    wait_until_told(watcher, cancelled, after=["d"])


def test_a_look_cancels_those_whose_client_has_left_and_no_others(watcher: Watcher, cancelled: Cancelled) -> None:
    left, there, without_client = bare_request("left"), bare_request("there"), bare_request("without client")
    left.client, there.client = LeavingClient(left=True), LeavingClient()
    watcher.look((without_client, there, left))
    assert cancelled.next() == ("left", CancelReason.DISCONNECT)
    assert cancelled.empty()


def test_a_request_that_is_gone_is_left_in_peace(clock: Clock, watcher: Watcher, cancelled: Cancelled) -> None:
    request, other = bare_request("gone"), bare_request("other")
    watcher.at_deadline(request, 0.01)
    watcher.at_deadline(other, 0.02)
    wait_until_told(watcher, cancelled)
    del request
    gc.collect()
    clock.now = 1.0
    assert cancelled.next()[0] == "other"


def test_a_closed_watcher_cancels_no_more_and_can_be_closed_again(cancelled: Cancelled) -> None:
    watcher = Watcher(cancelled.cancel)
    watcher.close()
    watcher.dropped(bare_request("late"))
    watcher.close()
    assert cancelled.empty()


def end(request: Request) -> None:
    request.ended.set_result(Ending(FinishReason.STOP, Usage(), RequestStatus.DECODE))


def test_deadlines_of_ended_requests_do_not_pile_up(watcher: Watcher, cancelled: Cancelled) -> None:
    live, ended = [bare_request("live") for _ in range(10)], [bare_request("ended") for _ in range(1000)]
    for request in (*live, *ended):
        watcher.at_deadline(request, time.monotonic() + 3600.0)
        if request in ended:
            end(request)
    watcher.dropped(live[0])
    assert cancelled.next() == ("live", CancelReason.DISCONNECT)
    assert len(live) <= len(watcher._pending) <= 2 * (len(live) + FEW)


def test_a_failing_cancel_delays_no_other_deadline(cancelled: Cancelled, caplog: pytest.LogCaptureFixture) -> None:
    def cancel(request: Request, reason: CancelReason) -> None:
        if request.id == "unlucky":
            raise MemoryError
        cancelled.cancel(request, reason)

    watcher = Watcher(cancel)
    unlucky, next_one = bare_request("unlucky"), bare_request("next")
    watcher.dropped(unlucky)
    watcher.dropped(next_one)
    assert cancelled.next()[0] == "next"
    assert "request unlucky could not be cancelled" in caplog.text
    watcher.close()
