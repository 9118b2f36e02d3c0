"""The registry: accepts, hands over, forgets."""

from __future__ import annotations

import threading

import pytest

from pyllmcancel.cancellation import Cancellation, CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, QueueFullError
from pyllmcancel.events import Ending, FinishReason, RequestStatus
from pyllmcancel.requests.effects import Accepted
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.holds import MAX_HOLDS
from pyllmcancel.requests.observer import NullObserver
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request, RequestSummary
from pyllmcancel.requests.token_stream import Outbox
from tests.support.bare_requests import bare_request
from tests.support.fake_model import CancelFlag
from tests.support.step_gate import TEST_LIMIT


def end(registry: Registry, request: Request) -> None:
    request.status = RequestStatus.FINISHED
    registry.seal(request)
    registry.forget(request, Ending(FinishReason.STOP, request.usage(), RequestStatus.DECODE))


def take(registry: Registry) -> Request | None:
    return registry.take_next(lambda heads: heads[0])


def test_an_accepted_request_waits_and_is_found() -> None:
    registry = Registry(max_queue=4)
    request = bare_request("a", supersede="s", session="a session")
    assert registry.accept(request) == Accepted((), ())
    assert registry.find("a") is request
    assert registry.newest("s") is request
    assert registry.counts() == (1, 0, 0, 1)


def test_the_engine_takes_requests_in_the_order_of_their_arrival() -> None:
    registry = Registry(max_queue=4)
    requests = [bare_request(str(number)) for number in range(3)]
    for request in requests:
        registry.accept(request)
    assert [take(registry) for _ in range(4)] == [*requests, None]
    assert registry.counts() == (0, 3, 0, 0)


def test_the_oldest_stays_as_long_as_it_is_not_chosen() -> None:
    registry = Registry(max_queue=4)
    first, second = bare_request("first"), bare_request("second")
    registry.accept(first)
    registry.accept(second)
    assert registry.take_next(lambda heads: None) is None
    assert take(registry) is first


def test_a_full_queue_refuses_and_changes_nothing() -> None:
    registry = Registry(max_queue=1)
    registry.accept(bare_request("waiting"))
    running = bare_request("running", supersede="s")
    with pytest.raises(QueueFullError):
        registry.accept(running)
    assert registry.find("running") is None
    assert registry.newest("s") is None
    assert registry.counts() == (1, 0, 0, 0)


def test_running_requests_do_not_fill_the_queue() -> None:
    registry = Registry(max_queue=1)
    registry.accept(bare_request("running"))
    take(registry)
    registry.accept(bare_request("waiting"))
    assert registry.counts() == (1, 1, 0, 0)


def test_a_key_may_replace_its_own_waiting_request_in_a_full_queue() -> None:
    registry = Registry(max_queue=1)
    old, new = bare_request("old", supersede="s"), bare_request("new", supersede="s")
    registry.accept(old)
    assert registry.accept(new) == Accepted((old,), (old,))
    assert old.cancellation.reason is CancelReason.SUPERSEDED
    assert old.superseded_by == "new"
    assert take(registry) is new


def test_a_key_whose_request_runs_takes_a_place_in_the_queue_like_any_other() -> None:
    registry = Registry(max_queue=1)
    running = bare_request("running", supersede="s")
    registry.accept(running)
    take(registry)
    registry.accept(bare_request("waiting"))
    with pytest.raises(QueueFullError):
        registry.accept(bare_request("new", supersede="s"))
    assert not running.cancellation.requested
    assert registry.newest("s") is running


def test_a_running_request_that_is_superseded_stays_the_engines_to_end() -> None:
    registry = Registry(max_queue=4)
    old, new = bare_request("old", supersede="s"), bare_request("new", supersede="s")
    registry.accept(old)
    take(registry)
    assert registry.accept(new) == Accepted(cancelled=(old,), withdrawn=())
    assert registry.counts() == (1, 0, 1, 0)


def test_a_request_cancelled_before_is_not_superseded_again() -> None:
    registry = Registry(max_queue=4)
    old = bare_request("old", supersede="s")
    registry.accept(old)
    take(registry)
    old.cancellation.request(CancelReason.DISCONNECT)
    assert registry.accept(bare_request("new", supersede="s")).cancelled == ()
    assert old.superseded_by is None
    assert old.cancellation.reason is CancelReason.DISCONNECT


def test_an_id_that_is_live_is_refused() -> None:
    registry = Registry(max_queue=4)
    registry.accept(bare_request("same"))
    with pytest.raises(InvalidRequestError, match="in use") as caught:
        registry.accept(bare_request("same"))
    assert caught.value.param == "id"
    assert registry.counts().waiting == 1


def test_an_id_is_free_again_after_the_end() -> None:
    registry = Registry(max_queue=4)
    first = bare_request("same")
    registry.accept(first)
    take(registry)
    end(registry, first)
    again = bare_request("same")
    registry.accept(again)
    assert registry.find("same") is again


def test_the_first_to_withdraw_a_request_owns_it() -> None:
    registry = Registry(max_queue=4)
    request = bare_request()
    registry.accept(request)
    assert registry.withdraw(request)
    assert not registry.withdraw(request)
    assert take(registry) is None


def test_a_held_id_is_cancelled_on_arrival() -> None:
    registry = Registry(max_queue=4)
    assert registry.find("early", hold=60.0) is None
    request = bare_request("early")
    assert registry.accept(request) == Accepted((request,), (request,))
    assert request.cancellation.reason is CancelReason.EXPLICIT


def test_a_hold_is_spent_once() -> None:
    registry = Registry(max_queue=4)
    registry.find("early", hold=60.0)
    first = bare_request("early")
    registry.accept(first)
    end(registry, first)
    assert registry.accept(bare_request("early")) == Accepted((), ())


def test_a_hold_that_has_expired_cancels_nothing() -> None:
    registry = Registry(max_queue=4)
    registry.find("early", hold=1e-9)
    assert registry.accept(bare_request("early")) == Accepted((), ())


def test_a_hold_that_expires_while_its_request_is_prepared_cancels_it() -> None:
    registry = Registry(max_queue=4)
    request = bare_request("early")  # its arrival
    registry.find("early", hold=1e-9)
    registry.find("another", hold=60.0)
    assert registry.accept(request).cancelled == (request,)


def test_a_hold_of_a_live_request_is_not_kept() -> None:
    registry = Registry(max_queue=4)
    request = bare_request("live")
    registry.accept(request)
    assert registry.find("live", hold=60.0) is request
    take(registry)
    end(registry, request)
    assert registry.accept(bare_request("live")) == Accepted((), ())


def test_a_refused_arrival_does_not_spend_the_hold() -> None:
    registry = Registry(max_queue=1)
    registry.find("early", hold=60.0)
    blocker = bare_request("blocker")
    registry.accept(blocker)
    with pytest.raises(QueueFullError):
        registry.accept(bare_request("early"))
    take(registry)
    assert registry.accept(bare_request("early")).cancelled


def test_holds_are_bounded() -> None:
    registry = Registry(max_queue=4)
    for number in range(MAX_HOLDS):
        registry.find(str(number), hold=60.0)
    with pytest.raises(QueueFullError):
        registry.find("one too many", hold=60.0)


def test_holds_that_have_run_out_make_room() -> None:
    registry = Registry(max_queue=4)
    for number in range(MAX_HOLDS):
        registry.find(str(number), hold=1e-9)
    registry.find("another", hold=60.0)
    assert registry.accept(bare_request("another")).cancelled


def test_a_forgotten_request_is_remembered_as_a_summary() -> None:
    registry = Registry(max_queue=4, history=2)
    for number in range(3):
        request = bare_request(str(number), supersede="s")
        registry.accept(request)
        take(registry)
        end(registry, request)
    assert [summary.id for summary in registry.history()] == ["2", "1"]
    found = registry.find("1")
    assert isinstance(found, RequestSummary)
    assert found.ending is not None
    assert registry.find("0") is None
    assert registry.counts() == (0, 0, 0, 0)


def test_requests_are_listed_oldest_first() -> None:
    registry = Registry(max_queue=4)
    requests = [bare_request(str(number)) for number in range(3)]
    for request in requests:
        registry.accept(request)
    take(registry)
    assert registry.requests() == requests


def test_a_closed_desk_accepts_no_more() -> None:
    registry = Registry(max_queue=4)
    registry.close()
    assert registry.closed
    with pytest.raises(EngineClosedError):
        registry.accept(bare_request())


@pytest.mark.parametrize("closes", [False, True])
def test_waiting_for_work_ends_when_a_request_arrives_or_the_desk_closes(closes: bool) -> None:
    registry = Registry(max_queue=4)
    found: list[bool | None] = []
    thread = threading.Thread(target=lambda: found.append(registry.wait_for_work()))
    thread.start()
    if closes:
        registry.close()
    else:
        registry.accept(bare_request())
    thread.join(TEST_LIMIT)
    assert found == [not closes]


def test_a_closed_desk_still_hands_over_what_it_had_accepted() -> None:
    registry = Registry(max_queue=4)
    registry.accept(bare_request())
    registry.close()
    assert registry.wait_for_work()


def test_waiting_for_work_ends_after_its_time_without_a_word_of_work_or_the_end() -> None:
    registry = Registry(max_queue=4)
    assert registry.wait_for_work(0.0) is None
    registry.accept(bare_request())
    assert registry.wait_for_work(0.0) is True


def test_a_closed_desk_without_work_says_so_at_once() -> None:
    registry = Registry(max_queue=4)
    registry.close()
    assert registry.wait_for_work(TEST_LIMIT) is False


def test_the_desk_is_empty_when_the_last_request_has_ended() -> None:
    registry = Registry(max_queue=4)
    request = bare_request()
    registry.accept(request)
    assert not registry.wait_until_empty(0.0)
    take(registry)
    end(registry, request)
    assert registry.wait_until_empty(0.0)


def test_no_moment_shows_a_key_without_or_with_two_live_requests() -> None:
    registry = Registry(max_queue=64)
    registry.accept(bare_request("first", supersede="s"))
    newcomers = [bare_request(str(number), supersede="s") for number in range(500)]
    done = threading.Event()

    def submit() -> None:
        for request in newcomers:
            registry.accept(request)
        done.set()

    thread = threading.Thread(target=submit)
    thread.start()
    while not done.is_set():
        newest = registry.newest("s")
        assert newest is not None
        live = [request for request in registry.requests() if request.live]
        assert len(live) <= 1
    thread.join()


def test_of_a_key_the_request_that_arrived_last_is_the_newest_in_any_order_of_acceptance() -> None:
    registry = Registry(max_queue=4)
    slow, quick = bare_request("slow", supersede="s"), bare_request("quick", supersede="s")
    slow.arrived_at = quick.arrived_at - 1.0
    registry.accept(quick)
    assert registry.accept(slow) == Accepted((slow,), (slow,))
    assert (slow.cancellation.reason, slow.superseded_by) == (CancelReason.SUPERSEDED, "quick")
    assert registry.newest("s") is quick
    assert not quick.cancellation.requested
    end(registry, slow)
    assert registry.newest("s") is quick


def test_a_request_that_ends_is_at_no_moment_seen_live_beside_its_successor() -> None:
    """Spin found this one: the successor arrives when the request is sealed, and not forgotten yet."""
    registry = Registry(max_queue=4)
    ends, successor = bare_request("ends", supersede="s"), bare_request("successor", supersede="s")
    registry.accept(ends)
    take(registry)
    seen: list[list[Request]] = []

    class Sealed(Cancellation):
        """Lets the successor arrive as soon as it is sealed and the registry can be asked."""

        def seal(self) -> CancelReason | None:
            reason = super().seal()
            if not registry._lock.locked():
                registry.accept(successor)
                seen.append([request for request in registry.requests() if request.live])
            return reason

    ends.cancellation = Sealed(CancelFlag())
    Endings(registry, NullObserver()).conclude(ends, FinishReason.STOP, Outbox())
    assert seen in ([], [[successor]])
    assert registry.requests() == [successor] * len(seen)


def test_a_sealed_request_is_neither_its_keys_newest_nor_shown() -> None:
    registry = Registry(max_queue=4)
    ends, successor = bare_request("ends", supersede="s"), bare_request("successor", supersede="s")
    registry.accept(ends)
    take(registry)
    registry.seal(ends)
    assert registry.counts() == (0, 0, 0, 0)
    assert registry.accept(successor) == Accepted((), ())
    assert registry.requests() == [successor]
    assert registry.newest("s") is successor
    assert not registry.wait_until_empty(0.0)
