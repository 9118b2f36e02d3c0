"""The supersede keys: the newest wins, and the table empties itself."""

from __future__ import annotations

import time

import pytest

from pyllmcancel.requests.holds import LONGEST_PREPARATION
from pyllmcancel.requests.request import Rank
from pyllmcancel.requests.supersede_keys import MAX_OWNERS, MAX_REMEMBERED, SupersedeKeys, Superseding
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


# -- requests of other processes --------------------------------------------------------------------------------------


def told(keys: SupersedeKeys, arrived_us: int, name: str = "elsewhere", key: str = "k", owner: str = "") -> None:
    keys.remember(owner, key, Rank(arrived_us, name))


def test_a_request_that_arrived_before_one_elsewhere_is_the_older_one() -> None:
    keys = SupersedeKeys()
    told(keys, 5)
    late = bare_request("late", supersede="k", arrived_us=4)
    assert keys.install(late) == Superseding(older=late, by="elsewhere")
    assert keys.newest("", "k") is None
    newer = bare_request("newer", supersede="k", arrived_us=6)
    assert keys.install(newer) is None
    assert keys.newest("", "k") is newer


def test_of_what_is_told_the_newest_counts_for_its_key_and_its_owner_only() -> None:
    keys = SupersedeKeys()
    told(keys, 5)
    told(keys, 3, "older")
    assert keys.newer_than("", "k", Rank(4, "r")) == Rank(5, "elsewhere")
    assert keys.newer_than("", "k", Rank(5, "elsewhere")) is None
    assert keys.newer_than("", "k", Rank(5, "e")) == Rank(5, "elsewhere")
    assert keys.newer_than("", "l", Rank(4, "r")) is None
    assert keys.newer_than("ann", "k", Rank(4, "r")) is None


def test_the_order_that_is_seen_here_is_told_though_the_clock_was_set_back() -> None:
    keys = SupersedeKeys()
    first, second = (bare_request(name, supersede="k", arrived_us=us) for name, us in (("first", 9), ("second", 2)))
    keys.install(first)
    assert keys.install(second) == Superseding(older=first, by="second")
    assert second.rank == Rank(10, "second")


def test_what_is_told_is_remembered_as_long_as_a_preparation_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SupersedeKeys()
    told(keys, 5)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LONGEST_PREPARATION + 1.0)
    assert keys.newer_than("", "k", Rank(4, "r")) is None


def test_what_is_older_does_not_keep_a_wrong_clock_s_request_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = SupersedeKeys()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told(keys, 10**18, "ahead")
    for number in range(4):
        now += LONGEST_PREPARATION / 3
        told(keys, number, f"r{number}")
    assert keys.newer_than("", "k", Rank(0, "r")) == Rank(3, "r3")
    request = bare_request("next", supersede="k", arrived_us=4)
    assert keys.install(request) is None


def test_of_too_many_that_are_told_the_oldest_are_forgotten_and_no_other_owners() -> None:
    keys = SupersedeKeys()
    told(keys, 5, owner="ann")
    for number in range(MAX_REMEMBERED + 1):
        told(keys, 5, key=str(number))
    assert keys.newer_than("", "0", Rank(4, "r")) is None
    assert keys.newer_than("", "1", Rank(4, "r")) is not None
    assert keys.newer_than("ann", "k", Rank(4, "r")) is not None


def test_no_more_owners_are_remembered_than_there_may_be() -> None:
    keys = SupersedeKeys()
    for number in range(MAX_OWNERS + 1):
        told(keys, 5, owner=str(number))
    assert keys.newer_than("0", "k", Rank(4, "r")) is None
    assert keys.newer_than(str(MAX_OWNERS), "k", Rank(4, "r")) is not None
