"""Requests in preparation, each refused, accepted or cancelled exactly once; and the sessions that they name."""

from unittest.mock import Mock

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, QueueFullError, RequestCancelled, UsageError
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.requests.arrivals import Arrivals
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.families import MAX_GENERATIONS, MAX_SESSIONS, Families
from pyllmcancel.requests.observer import Observer, Observers
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Names, Request
from pyllmcancel.requests.tables import Accepted
from pyllmcancel.requests.watcher import Watcher
from tests.support.bare_requests import bare_request

NOTHING = Accepted((), ())


class Table:
    """A registry, and its endings; each event is noted."""

    def __init__(self, max_queue: int = 4) -> None:
        self.registry = Registry(max_queue)
        self.observer = Mock(spec=Observer)
        self.endings = Endings(self.registry, self.observer)
        self.arrivals = Arrivals(self.registry, self.endings, Mock(spec=Watcher), Observers(self.observer), {})

    def arrived(self, name: str = "r", **origin: object) -> Request:
        request = bare_request(name, **origin)
        assert self.registry.arrive(request) == NOTHING
        return request


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def registry(table: Table) -> Registry:
    return table.registry


def test_a_request_is_listed_once_from_its_arrival_on(table: Table, registry: Registry) -> None:
    request = table.arrived(session="s")
    assert registry.requests() == [request]
    assert registry.find("r") is request
    assert [session.requests for session in registry.sessions()] == [["r"]]
    assert request.summary().status is RequestStatus.PREPARING
    assert registry.counts() == (0, 0, 0, 1)
    assert registry.load == (0, 0)
    assert registry.accept(request) == NOTHING
    assert registry.requests() == [request]
    assert request.status is RequestStatus.WAITING
    assert registry.counts() == (1, 0, 0, 1)


def test_a_refused_request_leaves_only_what_others_have_named_and_comes_too_late_for_a_cancel(
    table: Table, registry: Registry
) -> None:
    registry.accept(bare_request("other", session="s"))
    for origin in ({"session": "s"}, {"session": "t", "parent": "above", "supersede": "k"}):
        request = table.arrived(**origin)
        assert table.arrivals.refuse(request)
        assert not table.arrivals.refuse(request)
        assert not table.endings.cancel(request, CancelReason.EXPLICIT)
        assert request.ended.result(0).finish_reason is FinishReason.ERROR
    (session,) = registry.sessions()
    assert (session.requests, session.n_requests) == (["other"], 1)
    assert registry.preparing("k") == []
    table.observer.request_added.assert_not_called()


def test_a_refused_acceptance_leaves_the_request_in_preparation() -> None:
    registry = (table := Table(max_queue=1)).registry
    registry.accept(older := bare_request("waits", supersede="other"))
    request = table.arrived(supersede="k")
    with pytest.raises(QueueFullError):
        registry.accept(request)
    assert request.status is RequestStatus.PREPARING
    assert registry.newest("k") is None
    assert not older.cancellation.requested
    assert table.arrivals.refuse(request)


def test_a_cancel_between_two_pieces_of_work_ends_the_request_at_once(table: Table, registry: Registry) -> None:
    request = table.arrived(session="s", supersede="k")
    assert table.endings.cancel(request, CancelReason.EXPLICIT)
    ending = request.ended.result(0)
    assert (ending.finish_reason, ending.phase) == (FinishReason.CANCELLED, RequestStatus.PREPARING)
    assert [one.id for one in registry.history()] == ["r"]
    assert registry.preparing("k") == []
    assert registry.counts() == (0, 0, 0, 0)
    for act in (
        lambda: registry.begin_work(request, Mock()),
        lambda: registry.name(request, Names()),
        lambda: registry.accept(request),
    ):
        with pytest.raises(RequestCancelled):
            act()
    assert not table.arrivals.refuse(request)
    table.observer.request_ended.assert_called_once_with(request, ending)


def test_an_accepted_request_is_not_prepared_any_more(table: Table, registry: Registry) -> None:
    request = table.arrived()
    registry.accept(request)
    with pytest.raises(UsageError):
        registry.begin_work(request, Mock())
    assert not table.arrivals.refuse(request)


def test_an_accepted_request_supersedes_those_in_preparation_that_arrived_before(
    table: Table, registry: Registry
) -> None:
    older, works, newer = (table.arrived(f"at {at}", supersede="k", arrived_at=at) for at in (1, 2, 4))
    other = table.arrived("other", supersede="l", arrived_at=1)
    registry.begin_work(works, give_up := Mock())
    accepted = table.arrived("accepted", supersede="k", arrived_at=3)
    assert registry.preparing("k") != []
    effects = registry.accept(accepted)
    assert set(effects.cancelled) == {older, works}
    assert effects.withdrawn == (older,)
    give_up.assert_called_once_with()
    assert (older.superseded_by, works.superseded_by) == ("accepted", "accepted")
    assert not newer.cancellation.requested
    assert not other.cancellation.requested


def test_a_request_gets_the_names_of_its_body_when_that_has_been_read(table: Table, registry: Registry) -> None:
    request = table.arrived(session="head", supersede="in the head")
    registry.name(request, Names("body", None, "k", 1))
    assert [one.id for one in registry.sessions()] == ["body"]
    assert (registry.preparing("in the head"), registry.preparing("k")) == ([], [request])
    assert request.priority == 1
    registry.accept(request)
    (session,) = registry.sessions()
    assert (session.requests, session.n_requests) == (["r"], 1)


def test_names_that_are_refused_leave_the_request_without_any(table: Table, registry: Registry) -> None:
    request = table.arrived(session="head")
    with pytest.raises(InvalidRequestError, match="own parent"):
        registry.name(request, Names("s", "s"))
    assert registry.sessions() == []
    assert registry.requests() == [request]
    assert table.arrivals.refuse(request)


def test_requests_in_preparation_are_neither_waited_for_nor_buried(table: Table, registry: Registry) -> None:
    request = table.arrived()
    assert registry.wait_until_empty(0.0)
    assert registry.take_all(RuntimeError("no memory")) == []
    with pytest.raises(EngineClosedError):
        registry.accept(request)
    assert table.arrivals.refuse(request)


# -- sessions and families ---------------------------------------------------------------------------------------------


@pytest.fixture
def families() -> Families:
    return Families()


def joined(families: Families, name: str = "r", **origin: str) -> Request:
    request = bare_request(name, **origin)
    families.join(request)
    return request


def family(families: Families, name: str, owner: str = "") -> list[str]:
    return [session.name for session in families.find(owner, name).family()]


def test_a_session_is_remembered_after_its_last_request(families: Families) -> None:
    families.leave(joined(families, session="child", parent="parent"))
    assert families.count_live() == 0
    assert family(families, "parent") == ["parent", "child"]


def test_a_child_may_come_before_its_parent(families: Families) -> None:
    families.declare("", "child", "parent")
    families.declare("", "parent", "grandparent")
    assert family(families, "grandparent") == ["grandparent", "parent", "child"]


def test_a_session_with_live_requests_keeps_its_parent(families: Families) -> None:
    request = joined(families, session="child", parent="one")
    with pytest.raises(InvalidRequestError, match="another parent"):
        families.declare("", "child", "two")
    families.leave(request)
    families.declare("", "child", "two")
    assert family(families, "one") == ["one"]
    assert family(families, "two") == ["two", "child"]


def test_generations_are_bounded_above_and_below(families: Families) -> None:
    for number in range(1, MAX_GENERATIONS):
        families.declare("", f"s{number}", f"s{number - 1}")
    for child, parent in (("one too many", f"s{MAX_GENERATIONS - 1}"), ("s0", "above")):
        with pytest.raises(InvalidRequestError, match="generations"):
            families.declare("", child, parent)
    assert families.find("", "above") is None
    assert len(family(families, "s0")) == MAX_GENERATIONS


def test_the_least_recently_used_sessions_are_forgotten_children_first(families: Families) -> None:
    families.declare("", "child", "parent")
    joined(families, session="live")
    for number in range(MAX_SESSIONS - 2):
        families.declare("", str(number))
    assert families.find("", "child") is None
    assert family(families, "parent") == ["parent"]
    families.declare("", "one more")
    assert families.find("", "parent") is None
    assert families.find("", "live") is not None
    assert len(families.sessions("")) == MAX_SESSIONS


def test_sessions_with_live_requests_are_never_forgotten(families: Families) -> None:
    for number in range(MAX_SESSIONS):
        joined(families, str(number), session=str(number))
    with pytest.raises(QueueFullError, match="sessions"):
        families.declare("", "one too many")
    families.declare("another", "of another owner")
    assert len(families.sessions()) == MAX_SESSIONS + 1
