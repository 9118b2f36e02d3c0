"""The session map: newest wins, and the map empties itself."""

from __future__ import annotations

from pyllmcancel.sessions import SessionMap
from tests.support.bare import bare_request


def test_the_newest_request_replaces_the_one_before() -> None:
    sessions = SessionMap()
    old, new = bare_request("old", session="s"), bare_request("new", session="s")
    assert sessions.install(old) is None
    assert sessions.install(new) is old
    assert sessions.newest("s") is new
    assert list(sessions) == ["s"]


def test_requests_without_a_session_never_meet() -> None:
    sessions = SessionMap()
    assert sessions.install(bare_request("a")) is None
    assert sessions.install(bare_request("b")) is None
    assert len(sessions) == 0


def test_sessions_do_not_meet_each_other() -> None:
    sessions = SessionMap()
    sessions.install(bare_request("a", session="s"))
    assert sessions.install(bare_request("b", session="t")) is None


def test_an_ended_request_leaves_the_map_empty() -> None:
    sessions = SessionMap()
    request = bare_request(session="s")
    sessions.install(request)
    sessions.remove(request)
    assert len(sessions) == 0


def test_a_superseded_request_that_ends_does_not_take_its_successor_along() -> None:
    sessions = SessionMap()
    old, new = bare_request("old", session="s"), bare_request("new", session="s")
    sessions.install(old)
    sessions.install(new)
    sessions.remove(old)
    assert sessions.newest("s") is new


def test_a_request_that_was_never_installed_can_be_removed() -> None:
    sessions = SessionMap()
    sessions.remove(bare_request(session="s"))
    sessions.remove(bare_request())
    assert len(sessions) == 0
