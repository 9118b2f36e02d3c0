"""The registry: accepts, hands over, forgets."""

import threading
from typing import Any

import pytest

from pyllmcancel.cancellation import Cancellation, CancelReason
from pyllmcancel.errors import QueueFullError
from pyllmcancel.events import Ending, FinishReason, RequestStatus
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import Observer
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request, RequestSummary
from pyllmcancel.requests.tables import MAX_HOLDS, Accepted
from pyllmcancel.requests.token_stream import Outbox
from tests.support.bare_requests import bare_request
from tests.support.fake_model import CancelFlag


def end(registry: Registry, request: Request) -> None:
    request.status = RequestStatus.FINISHED
    registry.seal(request)
    registry.forget(request, Ending(FinishReason.STOP, request.usage(), RequestStatus.DECODE))


def take(registry: Registry) -> Request | None:
    return registry.take_next(lambda heads: heads[0])


def waiting(registry: Registry, name: str | None = None, **origin: Any) -> Request:
    request = bare_request(name or f"r{len(registry.requests())}", **origin)
    registry.accept(request)
    return request


def running(registry: Registry, name: str, **origin: Any) -> Request:
    request = waiting(registry, name, **origin)
    assert take(registry) is request
    return request


@pytest.fixture
def registry() -> Registry:
    return Registry(max_queue=4)


def test_a_full_queue_refuses_and_changes_nothing() -> None:
    registry = Registry(max_queue=1)
    runs = running(registry, "runs", supersede="s")
    waiting(registry, "waiting")
    with pytest.raises(QueueFullError):
        waiting(registry, "refused", supersede="s")  # a key whose request runs takes a place like any other
    assert registry.find("refused") is None
    assert registry.newest("s") is runs
    assert not runs.cancellation.requested
    assert registry.counts() == (1, 1, 0, 0)


def test_a_key_may_replace_its_own_waiting_request_in_a_full_queue() -> None:
    registry = Registry(max_queue=1)
    old, new = waiting(registry, "old", supersede="s"), bare_request("new", supersede="s")
    assert registry.accept(new) == Accepted((old,), (old,))
    assert old.cancellation.reason is CancelReason.SUPERSEDED
    assert old.superseded_by == "new"
    assert take(registry) is new


def test_a_running_request_that_is_superseded_stays_the_engines_to_end(registry: Registry) -> None:
    old, new = running(registry, "old", supersede="s"), bare_request("new", supersede="s")
    assert registry.accept(new) == Accepted(cancelled=(old,), withdrawn=())
    assert registry.counts() == (1, 0, 1, 0)
    assert (old.superseded_by, old.cancellation.reason) == ("new", CancelReason.SUPERSEDED)
    new.cancellation.request(CancelReason.DISCONNECT)
    assert registry.accept(bare_request("newest", supersede="s")).cancelled == (), "it was cancelled before"
    assert (new.superseded_by, new.cancellation.reason) == (None, CancelReason.DISCONNECT)


def test_the_first_to_withdraw_a_request_owns_it(registry: Registry) -> None:
    request = waiting(registry)
    assert registry.withdraw(request)
    assert not registry.withdraw(request)
    assert take(registry) is None


def test_a_hold_that_expires_while_its_request_is_prepared_cancels_it(registry: Registry) -> None:
    request = bare_request("early")  # its arrival
    registry.find("early", hold=1e-9)
    registry.find("another", hold=60.0)
    assert registry.accept(request).cancelled == (request,)


def test_a_hold_of_a_live_request_is_not_kept(registry: Registry) -> None:
    request = waiting(registry, "live")
    assert registry.find("live", hold=60.0) is request
    take(registry)
    end(registry, request)
    assert registry.accept(bare_request("live")) == Accepted((), ())


def test_a_refused_arrival_does_not_spend_the_hold() -> None:
    registry = Registry(max_queue=1)
    registry.find("early", hold=60.0)
    waiting(registry, "blocker")
    with pytest.raises(QueueFullError):
        waiting(registry, "early")
    take(registry)
    assert registry.accept(bare_request("early")).cancelled


def test_a_forgotten_request_is_remembered_as_a_summary() -> None:
    registry = Registry(max_queue=4, history=2)
    for number in range(3):
        end(registry, running(registry, str(number), supersede="s"))
    assert [summary.id for summary in registry.history()] == ["2", "1"]
    found = registry.find("1")
    assert isinstance(found, RequestSummary)
    assert registry.find("0") is None
    assert registry.counts() == (0, 0, 0, 0)


def test_no_moment_shows_a_key_without_or_with_two_live_requests() -> None:
    registry = Registry(max_queue=64)
    waiting(registry, "first", supersede="s")
    newcomers = [bare_request(str(number), supersede="s") for number in range(500)]
    done = threading.Event()

    def submit() -> None:
        for request in newcomers:
            registry.accept(request)
        done.set()

    thread = threading.Thread(target=submit)
    thread.start()
    while not done.is_set():
        assert registry.newest("s") is not None
        live = [request for request in registry.requests() if request.live]
        assert len(live) <= 1
    thread.join()


def test_of_a_key_the_request_that_arrived_last_is_the_newest_in_any_order_of_acceptance(registry: Registry) -> None:
    slow, quick = bare_request("slow", supersede="s", arrived_at=1.0), waiting(registry, "quick", supersede="s")
    assert registry.accept(slow) == Accepted((slow,), (slow,))
    assert (slow.cancellation.reason, slow.superseded_by) == (CancelReason.SUPERSEDED, "quick")
    assert registry.newest("s") is quick
    assert not quick.cancellation.requested
    end(registry, slow)
    assert registry.newest("s") is quick


def test_a_request_that_ends_is_at_no_moment_seen_live_beside_its_successor(registry: Registry) -> None:
    """Spin found this one: the successor arrives when the request is sealed, and not forgotten yet."""
    ends, successor = running(registry, "ends", supersede="s"), bare_request("successor", supersede="s")
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
    Endings(registry, Observer()).conclude(ends, FinishReason.STOP, Outbox())
    assert seen in ([], [[successor]])
    assert registry.requests() == [successor] * len(seen)


def test_a_sealed_request_is_neither_its_keys_newest_nor_shown(registry: Registry) -> None:
    ends, successor = running(registry, "ends", supersede="s"), bare_request("successor", supersede="s")
    registry.seal(ends)
    assert registry.counts() == (0, 0, 0, 0)
    assert registry.accept(successor) == Accepted((), ())
    assert registry.requests() == [successor]
    assert registry.newest("s") is successor
    assert not registry.wait_until_empty(0.0)


# -- holds: a cancel that comes before its request reaches it, and no other --------------------------------------------


def relate(registry: Registry, session: str, parent: str) -> None:
    """A request of the session, which has ended, has named its parent."""
    request = waiting(registry, session=session, parent=parent)
    Endings(registry, Observer()).conclude(request, FinishReason.STOP, Outbox())


@pytest.mark.parametrize("descendants", [True, False])
def test_a_held_session_holds_its_descendants_too_if_that_is_asked(registry: Registry, descendants: bool) -> None:
    live = waiting(registry, session="s")
    relate(registry, "child", "s")
    assert registry.family_to_cancel("s", hold=60.0, descendants=descendants)["s"] == [live]
    assert waiting(registry, session="grandchild", parent="child").cancellation.requested is descendants
    assert waiting(registry, parent="s").cancellation.requested
    assert waiting(registry, session="s").cancellation.requested
    assert not waiting(registry, session="stranger").cancellation.requested
    assert not live.cancellation.requested  # the caller does that


@pytest.mark.parametrize(
    ("origin", "descendants", "reached"),
    [
        ({"session": "s"}, True, True),
        ({"session": "s"}, False, True),
        ({"parent": "s"}, False, True),
        ({"session": "new", "parent": "s"}, True, True),
        ({"session": "new", "parent": "s"}, False, False),
        ({"session": "newer", "parent": "child"}, True, True),
        ({"session": "stranger"}, True, False),
        ({"session": "above"}, True, False),
    ],
)
def test_a_cancel_reaches_what_has_arrived_and_is_accepted_later(
    registry: Registry, origin: dict[str, str], descendants: bool, reached: bool
) -> None:
    """Its body was being read, or its prompt tokenized."""
    relate(registry, "child", "s")
    relate(registry, "s", "above")
    arrived_before = bare_request(**origin)
    assert registry.family_to_cancel("s", descendants=descendants) is not None
    registry.accept(arrived_before)
    assert arrived_before.cancellation.requested is reached
    assert not waiting(registry, **origin).cancellation.requested


@pytest.mark.parametrize("later", [{"descendants": False}, {"hold": 1e-9}])
def test_a_later_hold_takes_nothing_back(registry: Registry, later: dict[str, Any]) -> None:
    registry.family_to_cancel("s", hold=60.0)
    registry.family_to_cancel("s", **({"hold": 60.0} | later))
    registry.find("r0", hold=60.0)
    registry.find("r0", hold=1e-9)
    assert waiting(registry).cancellation.requested
    assert waiting(registry, session="s").cancellation.requested
    assert waiting(registry, session="child", parent="s").cancellation.requested


def test_a_longer_hold_without_descendants_holds_them_no_longer(registry: Registry) -> None:
    registry.family_to_cancel("s", hold=1e-9)
    registry.family_to_cancel("s", hold=60.0, descendants=False)
    assert not waiting(registry, session="child", parent="s").cancellation.requested
    assert waiting(registry, session="s").cancellation.requested


def test_holds_that_have_run_out_make_room_and_what_is_held_already_needs_no_more(registry: Registry) -> None:
    for hold in (1e-9, 60.0):
        for number in range(MAX_HOLDS):
            registry.find(str(number), hold=hold)
    registry.find("0", hold=60.0)
    with pytest.raises(QueueFullError):
        registry.find("another", hold=60.0)
    assert registry.accept(bare_request("0")).cancelled


def test_a_request_that_is_superseded_and_held_on_its_arrival_is_told_of_once(registry: Registry) -> None:
    late = bare_request("late", supersede="k")
    registry.accept(bare_request("newer", supersede="k"))
    registry.find("late", hold=60.0)
    assert registry.accept(late).cancelled == (late,)
