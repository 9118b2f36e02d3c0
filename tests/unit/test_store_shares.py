"""The room of the store: owners' shares, a full disk, and the files of batches."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.batches.storage import BatchStore
from pyllmcancel.server.batches.wire import file_told
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.storage.database import RESERVE, DiskFullError, StoreFullError
from pyllmcancel.server.responses.storage.store import Store
from tests.support.marks import mostly_long
from tests.support.stores import LIMIT, Disk, Stores, add, add_many, item, response, status_of

pytest_plugins = ("tests.support.store_fixtures",)

KIB = "x" * 1_000


@pytest.mark.parametrize("in_memory", mostly_long([False, True], False))
def test_a_flood_of_one_owner_costs_another_nothing(opened: Stores, in_memory: bool) -> None:
    store = opened(None if in_memory else "", max_bytes=50_000)
    add_many(store, "a", 10, "ann", text=KIB)
    add_many(store, "b", 200, "bob", text=KIB)
    assert {status_of(store, f"a{number}", "ann") for number in range(10)} == {"completed"}
    assert (status_of(store, "b0", "bob"), status_of(store, "b199", "bob")) == (None, "completed")


def test_what_does_not_fit_beside_others_shares_is_refused_and_costs_nothing(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add(store, "a", "ann", text=KIB)
    add(store, "b", "bob", text=KIB)
    with pytest.raises(StoreFullError, match="no room"):
        add(store, "long", "bob", text="x" * 49_000)
    assert (status_of(store, "a", "ann"), status_of(store, "b", "bob")) == ("completed", "completed")


def test_an_answer_that_grows_counts_as_its_owners(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add(store, "a", "ann", text="x" * 20_000)
    add(store, "old", "bob", text="x" * 20_000)
    add(store, "new", "bob", status="in_progress")
    store.finish("bob", response("new", text="x" * 20_000), b"").result(LIMIT)
    assert (status_of(store, "a", "ann"), status_of(store, "old", "bob")) == ("completed", None)
    assert status_of(store, "new", "bob") == "completed"


def test_shares_are_the_same_after_the_next_start(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    add(store, "a", "ann", text=KIB)
    add_many(store, "b", 20, "bob", text=KIB)
    store.close()
    store = opened(max_bytes=20_000)
    add(store, "c", "carol", text=KIB)
    assert status_of(store, "a", "ann") == "completed"
    assert (status_of(store, "b0", "bob"), status_of(store, "b19", "bob")) == (None, "completed")


def test_what_was_deleted_counts_no_more(opened: Stores) -> None:
    store = opened(max_bytes=50_000)
    for number in range(20):
        add(store, f"a{number}", "ann", text=KIB)
        store.delete("ann", f"a{number}").result(LIMIT)
    add_many(store, "b", 30, "bob", text=KIB)
    assert status_of(store, "b0", "bob") == "completed"


def test_owners_take_turns_at_the_stores_thread(opened: Stores) -> None:
    store = opened()
    begun, may_end = store._commits._changed, []

    def wait(_connection: object) -> None:
        with begun:
            begun.wait_for(lambda: may_end, LIMIT)

    first = store._commits.do(wait, "ann")
    while store._commits._todo:  # the thread has not taken it
        pass
    order: list[str] = []
    flood = [store._commits.do(lambda _, n=n: order.append(f"ann {n}"), "ann") for n in range(100)]
    bobs = store._commits.do(lambda _: order.append("bob"), "bob")
    with begun:
        may_end.append(True)
        begun.notify_all()
    for done in (first, *flood, bobs):
        done.result(LIMIT)
    assert order[:3] == ["ann 0", "bob", "ann 1"]


def test_items_count_with_their_response(opened: Stores) -> None:
    store = opened(max_bytes=10_000)
    add(store, "a", "ann")
    store.add("bob", response("b"), [item("b") | {"text": "x" * 8_000}]).result(LIMIT)
    store.add("bob", response("c"), [item("c") | {"text": "x" * 8_000}]).result(LIMIT)
    assert (status_of(store, "a", "ann"), status_of(store, "b", "bob")) == ("completed", None)
    assert json.loads(store.get("bob", "c").result(LIMIT).response)["id"] == "c"  # type: ignore[union-attr]


# -- a full disk -------------------------------------------------------------------------------------------------------


def full(store: Store) -> None:
    """From now on the file cannot grow."""
    (pages,) = store._commits._connection.execute("PRAGMA page_count").fetchone()  # type: ignore[union-attr]
    store._commits._connection.execute(f"PRAGMA max_page_count = {pages}")  # type: ignore[union-attr]


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


COUNTED = """SELECT (SELECT sum(bytes) FROM held) = (SELECT sum(size) FROM
    (SELECT size FROM responses UNION ALL SELECT size FROM objects)), (SELECT count(*) FROM pieces)"""


def batch_of(file_id: str) -> dict[str, Any]:
    return {"id": "batch_x", "input_file_id": file_id, "request_counts": {}}


def counted(store: BatchStore) -> tuple[int, int]:
    """Return whether the bytes are those that were counted, and the number of pieces."""
    found: tuple[int, int] = store.store.do(lambda it: it.execute(COUNTED).fetchone(), "").result(LIMIT)
    return found


def add_file(store: BatchStore, name: str, size: int = 400) -> None:
    store.add_file("", file_told(name, "batch", "", size, 0), b"x" * size).result(LIMIT)


def there(store: BatchStore, name: str) -> bool:
    try:
        asyncio.run(store.get("", name, "batch"))
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("runs", [False, True])
def test_files_make_room_after_responses_and_not_while_their_batch_runs(opened: Stores, *, runs: bool) -> None:
    store = BatchStore(opened(max_bytes=2_150))
    add_file(store, "a")
    if runs:
        assert store.begin("", batch_of("a")).result(LIMIT)
    store.store.add("", response("r", text="x" * 200), []).result(LIMIT)
    add_file(store, "b", 1_400)
    assert (there(store, "a"), there(store, "b"), store.store.get("", "r").result(LIMIT)) == (True, True, None)
    assert counted(store) == (1, 2)
    if runs:
        with pytest.raises(StoreFullError):
            add_file(store, "c", 2_000)
    else:
        add_file(store, "c", 2_000)
    assert there(store, "a") is runs
    assert counted(store)[0] == 1


def test_a_line_has_one_result_and_a_batch_gives_its_file_back(opened: Stores) -> None:
    store = BatchStore(opened())
    add_file(store, "a")
    batch = batch_of("a")
    assert not store.begin("", batch_of("b")).result(LIMIT)
    assert store.begin("", batch).result(LIMIT)
    assert not store.delete_file("", "a").result(LIMIT)
    store.save("", batch, [(1, False, b"first"), (2, True, b"bad")]).result(LIMIT)
    store.save("", batch, [(1, True, b"again")]).result(LIMIT)
    assert store.results("", "batch_x").result(LIMIT) == {1: 0, 2: 1}
    store.finish("", batch).result(LIMIT)
    assert batch["request_counts"] == {"completed": 1, "failed": 1}
    for name, content in (batch["output_file_id"], b"first"), (batch["error_file_id"], b"bad"):
        assert asyncio.run(joined(store, name)) == content
        assert store.delete_file("", name).result(LIMIT)
        assert asyncio.run(joined(store, name)) == b""
    assert store.delete_file("", "a").result(LIMIT)
    assert counted(store) == (1, 0)


async def joined(store: BatchStore, name: str) -> bytes:
    return b"".join([piece async for piece in store.content("", name)])
