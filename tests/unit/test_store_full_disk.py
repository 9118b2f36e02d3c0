"""A full disk: nothing older is lost, deleting makes room, and storing goes on when there is room."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.responses.storage.database import RESERVE, DiskFullError, StoreFullError
from pyllmcancel.server.responses.storage.store import Store
from tests.support.stores import LIMIT, Disk, Stores, add, add_many, response, status_of

pytest_plugins = ("tests.support.store_fixtures",)

KIB = "x" * 1_000


def full(store: Store) -> None:
    """From now on the file cannot grow."""
    (pages,) = store._commits._connection.execute("PRAGMA page_count").fetchone()  # type: ignore[union-attr]
    store._commits._connection.execute(f"PRAGMA max_page_count = {pages}")  # type: ignore[union-attr]


def test_a_full_disk_fails_what_is_stored_and_costs_nothing_older(opened: Stores) -> None:
    store = opened()
    add(store, "old")
    full(store)
    with pytest.raises(StoreFullError, match="could not be stored"):
        add(store, "new", text="x" * 100_000)
    assert store.full
    assert (status_of(store, "old"), status_of(store, "new")) == ("completed", None)
    store._commits._connection.execute("PRAGMA max_page_count = 100000")  # type: ignore[union-attr]
    add(store, "new", text="x" * 100_000)
    assert status_of(store, "new") == "completed"
    assert not store.full


def test_of_several_in_a_commit_only_what_does_not_fit_fails(opened: Stores) -> None:
    store = opened()
    add(store, "old")
    full(store)
    done = [store.add("", response(name, text="x" * n), []) for name, n in (("a", 10), ("b", 100_000), ("c", 10))]
    with pytest.raises(StoreFullError):
        done[1].result(LIMIT)
    assert [done[0].result(LIMIT), done[2].result(LIMIT)] == [None, None]
    assert [status_of(store, name) for name in "abc"] == ["completed", None, "completed"]


def test_the_journal_is_never_shorter_than_a_deletion_needs(opened: Stores, path: Path) -> None:
    journal = Path(f"{path}-journal")
    for _ in range(2):
        store = opened(max_bytes=1 << 30)
        add(store, "a", text=KIB * 3_000)
        assert store.delete("", "a").result(LIMIT)
        store.close()
        assert journal.stat().st_size == RESERVE


# -- a disk that is really full ---------------------------------------------------------------------------------------


def outcomes(done: Callable[[int], Any], numbers: range) -> list[Any]:
    found = []
    for number in numbers:
        try:
            found.append(done(number))
        except StoreFullError as error:
            found.append(type(error))
    return found


def test_deleting_makes_room_on_a_full_disk(opened: Stores, disk: Disk) -> None:
    store = opened(disk.store, max_bytes=1 << 30)
    for number in range(10):
        add(store, f"r{number}", text=KIB * (300 if number == 5 else 20))
    disk.fill()
    assert DiskFullError in outcomes(lambda n: add(store, f"more{n}", text=KIB * 20), range(100))
    assert outcomes(lambda n: store.delete("", f"r{n}").result(LIMIT), range(10)) == [True] * 10
    add(store, "new", text=KIB * 200)
    assert status_of(store, "new") == "completed"
    assert not store.full


def test_where_there_is_no_room_to_begin_storing_begins_when_there_is(opened: Stores, disk: Disk) -> None:
    disk.fill()
    store = opened(disk.store)
    assert store.full
    with pytest.raises(DiskFullError, match="no room"):
        add(store, "a")
    disk.empty()
    add(store, "a")
    assert status_of(store, "a") == "completed"
    assert not store.full


def test_what_is_deleted_goes_back_to_the_disk(opened: Stores, disk: Disk) -> None:
    store = opened(disk.store, max_bytes=1 << 30)
    add_many(store, "r", 4, text=KIB * 900)
    disk.fill()
    size = disk.store.stat().st_size
    for number in range(4):
        assert store.delete("", f"r{number}").result(LIMIT)
    for _ in range(100):  # some pages each time
        store.exists("", "r0").result(LIMIT)
    assert disk.store.stat().st_size <= size - (2 << 20)


def test_a_store_starts_on_a_full_disk(opened: Stores, disk: Disk) -> None:
    store = opened(disk.store)
    add(store, "a")
    add_many(store, "running", 20, status="in_progress")
    store.close()
    disk.fill()
    store = opened(disk.store)
    assert status_of(store, "a") == "completed"
    assert {status_of(store, f"running{number}") for number in range(20)} == {"failed"}
    assert store.delete("", "a").result(LIMIT)


def test_what_was_acknowledged_on_a_full_disk_is_there_at_the_next_start(opened: Stores, disk: Disk) -> None:
    store = opened(disk.store, max_bytes=1 << 30)
    add_many(store, "r", 10, text=KIB * 20)
    disk.fill()
    for number in range(5):
        store.delete("", f"r{number}").result(LIMIT)
    added = outcomes(lambda n: add(store, f"more{n}", text=KIB * 20), range(20))
    store.close()
    connection = sqlite3.connect(disk.store)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    store = opened(disk.store)
    kept = [f"r{number}" for number in range(5, 10)]
    kept += [f"more{number}" for number, outcome in enumerate(added) if outcome is None]
    assert {status_of(store, name) for name in kept} == {"completed"}
    assert {status_of(store, f"r{number}") for number in range(5)} == {None}


def test_what_is_deleted_is_overwritten_in_the_file(opened: Stores, path: Path) -> None:
    store = opened()
    add(store, "a", text="SECRET" * 2_000)
    assert b"SECRET" in path.read_bytes()
    store.delete("", "a").result(LIMIT)
    store.close()
    assert b"SECRET" not in path.read_bytes()
