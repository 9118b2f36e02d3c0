"""Sessions and families: membership, descent, bounds."""

import pytest

from pyllmcancel.errors import InvalidRequestError, QueueFullError
from pyllmcancel.requests.families import MAX_GENERATIONS, MAX_SESSIONS, Families
from pyllmcancel.requests.request import Request
from tests.support.bare_requests import bare_request

OWNED = (("s", "a"), ("s", "a"), ("t", "a"), ("s", "b"))  # sessions and their owners


@pytest.fixture
def families() -> Families:
    return Families()


def joined(families: Families, name: str = "r", **origin: str) -> Request:
    request = bare_request(name, **origin)
    families.join(request)
    return request


def family(families: Families, name: str, owner: str = "") -> list[str]:
    found = families.find(owner, name)
    assert found is not None
    return [session.name for session in found.family()]


def test_a_session_is_remembered_after_its_last_request(families: Families) -> None:
    families.leave(joined(families, session="child", parent="parent"))
    assert families.count_live() == 0
    assert family(families, "parent") == ["parent", "child"]


def test_sessions_with_live_requests_are_counted_by_owner(families: Families) -> None:
    requests = [joined(families, str(n), session=session, owner=owner) for n, (session, owner) in enumerate(OWNED)]
    assert [families.count_live(owner) for owner in ("a", "b", "c", None)] == [2, 1, 0, 3]
    for _ in range(2):  # the second time it has left
        families.leave(requests[0])
    assert [families.count_live(owner) for owner in ("a", "b", None)] == [2, 1, 3]
    families.leave(requests[1])
    assert [families.count_live(owner) for owner in ("a", "b", None)] == [1, 1, 2]


def test_a_family_is_a_session_with_all_descendants(families: Families) -> None:
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("stranger", None)):
        families.declare("", name, parent)
    assert sorted(family(families, "a")) == ["a", "b", "c", "d"]
    assert family(families, "b") == ["b", "c"]
    assert [session.name for session in families.declare("", "c").lineage()] == ["c", "b", "a"]


def test_a_child_may_come_before_its_parent(families: Families) -> None:
    families.declare("", "child", "parent")
    families.declare("", "parent", "grandparent")
    assert family(families, "grandparent") == ["grandparent", "parent", "child"]


def test_a_request_that_names_only_a_parent_is_a_member_of_it(families: Families) -> None:
    request = joined(families, parent="p")
    session = families.find("", "p")
    assert session is not None
    assert list(session.live) == [request.id]
    families.leave(request)
    assert not session.live


@pytest.mark.parametrize("parent", ["a", "b", "c"])
def test_no_session_is_its_own_ancestor(families: Families, parent: str) -> None:
    families.declare("", "b", "a")
    families.declare("", "c", "b")
    with pytest.raises(InvalidRequestError, match=r"own parent|descendant") as caught:
        families.declare("", "a", parent)
    assert caught.value.param == "parent_session_id"
    assert family(families, "a") == ["a", "b", "c"]


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
    with pytest.raises(InvalidRequestError, match="generations"):
        families.declare("", "one too many", f"s{MAX_GENERATIONS - 1}")
    with pytest.raises(InvalidRequestError, match="generations"):
        families.declare("", "s0", "above")
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
