"""Holds: a cancel that comes before its request reaches it, and no other."""

from typing import Any

import pytest

from pyllmcancel.errors import QueueFullError
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.holds import MAX_HOLDS
from pyllmcancel.requests.observer import NullObserver
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Outbox
from tests.support.bare_requests import bare_request


@pytest.fixture
def registry() -> Registry:
    return Registry(max_queue=10)


def arrive(registry: Registry, **origin: str) -> Request:
    request = bare_request(f"r{len(registry.requests())}", **origin)
    registry.accept(request)
    return request


def relate(registry: Registry, session: str, parent: str) -> None:
    """A request of the session, which has ended, has named its parent."""
    request = arrive(registry, session=session, parent=parent)
    Endings(registry, NullObserver()).conclude(request, FinishReason.STOP, Outbox())


def test_a_held_session_holds_its_descendants_too(registry: Registry) -> None:
    relate(registry, "child", "s")
    registry.family_to_cancel("s", hold=60.0)
    assert arrive(registry, session="grandchild", parent="child").cancellation.requested
    assert arrive(registry, parent="s").cancellation.requested
    assert not arrive(registry, session="stranger").cancellation.requested


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
    assert not arrive(registry, **origin).cancellation.requested


def test_descendants_are_left_out_where_that_is_asked(registry: Registry) -> None:
    registry.family_to_cancel("s", hold=60.0, descendants=False)
    assert not arrive(registry, session="child", parent="s").cancellation.requested
    assert arrive(registry, session="s").cancellation.requested


def test_a_known_session_is_held_too_and_its_live_requests_are_told(registry: Registry) -> None:
    live = arrive(registry, session="s")
    assert registry.family_to_cancel("s", hold=60.0) == {"s": [live]}
    assert arrive(registry, session="s").cancellation.requested
    assert not live.cancellation.requested  # the caller does that


@pytest.mark.parametrize("later", [{"descendants": False}, {"hold": 1e-9}])
def test_a_later_hold_of_a_session_takes_nothing_back(registry: Registry, later: dict[str, Any]) -> None:
    registry.family_to_cancel("s", hold=60.0)
    registry.family_to_cancel("s", **({"hold": 60.0} | later))
    assert arrive(registry, session="s").cancellation.requested
    assert arrive(registry, session="child", parent="s").cancellation.requested


def test_a_longer_hold_without_descendants_holds_them_no_longer(registry: Registry) -> None:
    registry.family_to_cancel("s", hold=1e-9)
    registry.family_to_cancel("s", hold=60.0, descendants=False)
    assert not arrive(registry, session="child", parent="s").cancellation.requested
    assert arrive(registry, session="s").cancellation.requested


def test_a_later_and_shorter_hold_of_an_id_takes_nothing_back(registry: Registry) -> None:
    registry.find("r0", hold=60.0)
    registry.find("r0", hold=1e-9)
    assert arrive(registry).cancellation.requested


def test_a_hold_that_has_expired_cancels_nothing(registry: Registry) -> None:
    registry.family_to_cancel("s", hold=1e-9)
    assert not arrive(registry, session="s").cancellation.requested


def test_what_is_held_already_needs_no_more_room(registry: Registry) -> None:
    for number in range(MAX_HOLDS):
        registry.find(str(number), hold=60.0)
    registry.find("0", hold=60.0)
    with pytest.raises(QueueFullError):
        registry.find("another", hold=60.0)


def test_a_request_that_is_superseded_and_held_on_its_arrival_is_told_of_once(registry: Registry) -> None:
    late = bare_request("late", supersede="k")
    registry.accept(bare_request("newer", supersede="k"))
    registry.find("late", hold=60.0)
    assert registry.accept(late).cancelled == (late,)
