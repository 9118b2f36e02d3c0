"""The supersede keys: the newest wins, and the table empties itself."""

from __future__ import annotations

from pyllmcancel.requests.supersede_keys import SupersedeKeys, Superseding
from tests.support.bare_requests import bare_request


def test_the_newest_request_replaces_the_one_before() -> None:
    keys = SupersedeKeys()
    old, new = bare_request("old", supersede="k"), bare_request("new", supersede="k")
    assert keys.install(old) is None
    assert keys.install(new) == Superseding(older=old, by="new")
    assert keys.newest("", "k") is new
    assert len(keys) == 1


def test_a_request_that_arrived_before_the_newest_is_the_older_one() -> None:
    keys = SupersedeKeys()
    slow, quick = bare_request("slow", supersede="k", arrived_at=1.0), bare_request("quick", supersede="k")
    keys.install(quick)
    assert keys.install(slow) == Superseding(older=slow, by="quick")
    assert keys.newest("", "k") is quick


def test_requests_without_a_key_never_meet() -> None:
    keys = SupersedeKeys()
    assert keys.install(bare_request("a", session="s")) is None
    assert keys.install(bare_request("b", session="s")) is None
    assert len(keys) == 0


def test_neither_other_keys_nor_other_owners_meet() -> None:
    keys = SupersedeKeys()
    keys.install(bare_request("a", supersede="k"))
    assert keys.install(bare_request("b", supersede="l")) is None
    assert keys.install(bare_request("a", supersede="k", owner="another")) is None
    assert len(keys) == 3


def test_an_ended_request_leaves_the_table_empty() -> None:
    keys = SupersedeKeys()
    request = bare_request(supersede="k")
    keys.install(request)
    keys.remove(request)
    assert len(keys) == 0


def test_a_superseded_request_that_ends_does_not_take_its_successor_along() -> None:
    keys = SupersedeKeys()
    old, new = bare_request("old", supersede="k"), bare_request("new", supersede="k")
    keys.install(old)
    keys.install(new)
    keys.remove(old)
    assert keys.newest("", "k") is new


def test_a_request_that_was_never_installed_can_be_removed() -> None:
    keys = SupersedeKeys()
    keys.remove(bare_request(supersede="k"))
    keys.remove(bare_request())
    assert len(keys) == 0
