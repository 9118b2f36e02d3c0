"""The store of responses: what is acknowledged stays, what is not ours is left alone, and damage costs its own row."""

import json
import os
import sqlite3
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.responses.storage import rows
from pyllmcancel.server.responses.storage.database import (
    StoreError,
    StoreFullError,
)
from pyllmcancel.server.responses.storage.rows import Stored
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.server.responses.stored import events_from
from tests.support.stores import LIMIT, Stores, add, add_many, edit, response, status_of

pytest_plugins = ("tests.support.store_fixtures",)

SECRET = "SECRET"


def part(store: Store, name: str, *, output: bool) -> tuple[list[str], str | None]:
    """The ids of the items up to a response, and the response before them that is missing."""
    found = store.part("", name, output=output).result(LIMIT)
    return [item["id"] for item in found.items], found.missing


# -- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_is_kept_can_be_had_and_forgotten(opened: Stores, path: Path, in_memory: bool) -> None:
    store = opened(None if in_memory else path)
    add(store, "a")
    kept = store.get("", "a").result(LIMIT)
    assert json.loads(kept.response) == response("a")
    assert (kept.background, kept.log) == (True, None)
    assert store.delete("", "a").result(LIMIT)
    assert not store.delete("", "a").result(LIMIT)
    assert store.get("", "a").result(LIMIT) is None


def test_one_that_replaces_another_is_counted_once(opened: Stores) -> None:
    store, counted = opened(), "SELECT (SELECT sum(bytes) FROM held) = (SELECT sum(size) FROM responses)"
    for _ in range(2):
        store.add("", response("a"), [], replaces=True).result(LIMIT)
        assert store._commits.do(lambda it: it.execute(counted).fetchone(), "").result(LIMIT) == (1,)


def test_a_conversation_is_all_that_came_before(opened: Stores) -> None:
    store = opened()
    add(store, "a")
    add(store, "b", previous="a")
    add(store, "c", previous="b")
    assert part(store, "c", output=False) == (["in_a", "out_a", "in_b", "out_b", "in_c"], None)
    assert part(store, "a", output=True) == (["in_a", "out_a"], None)
    store.delete("", "b").result(LIMIT)
    assert part(store, "c", output=True) == (["in_c", "out_c"], "b")


def test_items_are_those_of_their_responses_and_bounded(opened: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    add(store, "a")
    add(store, "b", previous="a")
    assert [found["id"] for found in store.items("", ["b", "none"]).result(LIMIT)] == ["in_b", "out_b"]
    assert store.items("another", ["b"]).result(LIMIT) == []
    monkeypatch.setattr(rows, "MAX_CONVERSATION_BYTES", 300)
    assert store.items("", ["a"]).result(LIMIT)
    with pytest.raises(StoreError, match="300"):
        store.items("", ["a", "b"]).result(LIMIT)


def test_a_conversation_that_has_no_beginning_is_not_there(opened: Stores) -> None:
    store = opened()
    add(store, "a")
    add(store, "b", previous="a")
    store.delete("", "a").result(LIMIT)
    add(store, "a", previous="b")
    with pytest.raises(StoreError, match="'b' not found"):
        store.part("", "b", output=True).result(LIMIT)


def test_a_conversation_that_is_too_long_is_refused(opened: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_CONVERSATION_BYTES", 3_000)
    store = opened()
    add(store, "a", text="x" * 2_000)
    add(store, "b", text="x" * 2_000, previous="a")
    assert store.part("", "a", output=True).result(LIMIT)
    with pytest.raises(StoreError, match="3,000"):
        store.part("", "b", output=True).result(LIMIT)


def test_what_is_acknowledged_is_there_at_the_next_start_and_what_was_running_is_failed(opened: Stores) -> None:
    store = opened()
    add(store, "a", text="more", status="queued")
    store.finish("", response("a", text="more"), b"log").result(LIMIT)
    add(store, "b", status="queued")
    add(store, "c", status="in_progress")
    store.close()
    store = opened()
    kept, *running = [store.get("", name).result(LIMIT) for name in "abc"]
    assert (json.loads(kept.response)["text"], kept.log, kept.status) == ("more", b"log", "completed")
    for one in running:
        found = json.loads(one.response)
        assert (one.status, found["status"], found["error"]["code"]) == ("failed", "failed", "server_error")
        assert "the server ended" in found["error"]["message"]


def test_a_closed_store_says_so(opened: Stores) -> None:
    store = opened()
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        add(store, "a")


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_what_was_not_used_for_longest_makes_room(opened: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "NOTED_SECONDS", 0.0)
    store = opened(max_bytes=5_000)
    for name in "abc":
        add(store, name, text="x" * 1_000)
    store.part("", "a", output=True).result(LIMIT)  # uses it
    for name in range(40):
        add(store, f"more{name}", text="x" * 1_000)
        store.part("", "a", output=True).result(LIMIT)
    assert status_of(store, "b") is status_of(store, "c") is None
    assert (status_of(store, "more39"), status_of(store, "more0")) == ("completed", None)


def test_room_is_made_by_bytes_and_what_runs_is_not_forgotten(opened: Stores, path: Path) -> None:
    store = opened(max_bytes=50_000)
    add(store, "live", status="queued")
    add_many(store, "r", 300, text="x" * 1_000)
    assert status_of(store, "live") == "queued"
    store.close()
    with sqlite3.connect(path) as connection:
        (size,) = connection.execute("SELECT sum(size) FROM responses").fetchone()
    connection.close()
    assert 20_000 < size <= 50_000
    assert path.stat().st_size < 400_000


def test_one_response_cannot_be_longer_than_the_store(opened: Stores) -> None:
    store = opened(max_bytes=5_000)
    add(store, "a")
    with pytest.raises(StoreFullError, match="5,000"):
        add(store, "b", text="x" * 5_000)
    assert status_of(store, "a") == "completed"


def test_what_is_too_old_is_forgotten_at_the_start(opened: Stores, path: Path) -> None:
    store = opened()
    add(store, "old")
    add(store, "new")
    store.close()
    edit(path, "UPDATE responses SET used = used - 100 WHERE id = 'old'")
    store = opened(max_age=50.0)
    assert (status_of(store, "old"), status_of(store, "new")) == (None, "completed")


# -- files that are no store ------------------------------------------------------------------------------------------


def test_nobody_else_may_read_it(opened: Stores, path: Path) -> None:
    add(opened(), "a")
    files = list(path.parent.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("change", "message"), [("user_version = 2", r"version 2.*version 3"), ("application_id = 0", "another program's")]
)
def test_a_file_that_is_no_such_store_is_left_as_it_is(opened: Stores, path: Path, change: str, message: str) -> None:
    store = opened()
    add(store, "a", text=SECRET)
    store.close()
    edit(path, f"PRAGMA {change}", f"CREATE TABLE {SECRET} (x)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as told:
        opened()
    assert path.read_bytes() == before
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("damage", ["text", "cut", "overwritten"])
def test_a_corrupt_file_is_told_at_the_start(opened: Stores, path: Path, damage: str) -> None:
    store = opened()
    add_many(store, "r", 200, text=SECRET * 200)
    store.close()
    whole = path.read_bytes()
    match damage:
        case "text":
            path.write_bytes(SECRET.encode() * 1_000)
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "overwritten":
            path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with pytest.raises(StoreError, match=r"responses\.db") as told:
        opened()
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("where", ["/proc/responses.db", "/dev/null/responses.db", "folder"])
def test_a_place_where_nothing_can_be_written_is_told_at_the_start(opened: Stores, tmp_path: Path, where: str) -> None:
    with pytest.raises(StoreError, match="store"):
        opened(tmp_path if where == "folder" else Path(where))


# -- damage ------------------------------------------------------------------------------------------------------------


NOT_UTF8 = "CAST(x'534543524554fffe' AS TEXT)"  # SECRET, and two bytes that are none


def damaged(opened: Stores, change: str) -> Store:
    """A store of two responses, of which the first was changed between two starts."""
    store = opened()
    add(store, "bad", text=SECRET)
    add(store, "good", text=SECRET)
    store.close()
    edit(opened.path, "PRAGMA ignore_check_constraints = ON", f"UPDATE responses SET {change} WHERE id = 'bad'")
    return opened()


ASKING: dict[str, Callable[[Store], Any]] = {
    "get": lambda store: store.get("", "bad").result(LIMIT),
    "input": lambda store: store.part("", "bad", output=False).result(LIMIT),
    "history": lambda store: store.part("", "bad", output=True).result(LIMIT),
    "items": lambda store: store.items("", ["bad"]).result(LIMIT),
}


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (f"response = {NOT_UTF8}", ("get", "history", "items")),
        ('response = \'{"id": "SECRET\'', ("get", "history", "items")),
        ("response = '[\"SECRET\"]'", ("get", "history", "items")),
        ("response = x'7b7d'", ("get", "history", "items")),
        ("response = '{\"SECRET\": 1}'", ("history", "items")),
        ("response = '{\"output\": 5}'", ("history", "items")),
        (f"input = {NOT_UTF8}", ("input", "history", "items")),
        ("input = '[{\"SECRET'", ("input", "history", "items")),
        ("input = '{\"SECRET\": 1}'", ("input", "history", "items")),
        ("input = '[{\"id\": 1}]'", ("input", "history", "items")),
        (f"status = {NOT_UTF8}", ("get",)),
        ("status = 'SECRET'", ("get",)),
        ("used = 'SECRET'", ("input", "history")),
        (f"previous = {NOT_UTF8}", ("input", "history")),
    ],
)
def test_a_damaged_row_costs_only_its_own_response(opened: Stores, change: str, asked: tuple[str, ...]) -> None:
    store = damaged(opened, change)
    for name in asked:
        with pytest.raises(StoreError, match="damaged") as told:
            ASKING[name](store)
        assert SECRET not in str(told.value)
        assert told.value.__cause__ is None
    assert status_of(store, "good") == "completed"
    assert len(store.items("", ["good"]).result(LIMIT)) == 2
    assert store.delete("", "bad").result(LIMIT)
    assert store.get("", "bad").result(LIMIT) is None


def test_a_conversation_goes_as_far_as_what_is_damaged(opened: Stores) -> None:
    store = opened()
    add(store, "a")
    add(store, "b", previous="a")
    store.close()
    edit(opened.path, f"UPDATE responses SET input = {NOT_UTF8} WHERE id = 'a'")
    store = opened()
    with pytest.raises(StoreError, match="damaged") as told:
        store.part("", "b", output=True).result(LIMIT)
    assert "stored as 'a'" in str(told.value)
    assert status_of(store, "b") == "completed"


@pytest.mark.parametrize("log", [b"", b"SECRET", zlib.compress(b"SECRET" * 100)[:-1], None])
def test_a_damaged_log_is_not_told(log: bytes | None) -> None:
    with pytest.raises(StoreError) as told:
        events_from(Stored('{"tools": ["SECRET"], "error": null}', True, "completed", log), "resp_a", 0)
    assert (told.value.code, SECRET in str(told.value)) == ("response_damaged", False)


def test_a_damaged_row_that_was_running_does_not_keep_the_server_from_starting(opened: Stores) -> None:
    store = damaged(opened, f"status = 'in_progress', response = {NOT_UTF8}")
    with pytest.raises(StoreError, match="damaged"):
        store.get("", "bad").result(LIMIT)
    assert status_of(store, "good") == "completed"


def test_a_damaged_owner_keeps_its_room_and_nobody_from_storing(opened: Stores) -> None:
    store = damaged(opened, f"owner = {NOT_UTF8}")
    add_many(store, "r", 300, text="x" * 10_000)
    assert status_of(store, "r299") == "completed"
    assert store.get("", "bad").result(LIMIT) is None


def pages_of(path: Path, kind: bytes) -> list[int]:
    whole = path.read_bytes()
    return [place for place in range(4096, len(whole), 4096) if whole[place : place + 1] == kind]


def read_all(opened: Stores) -> None:
    store = opened()
    for number in range(200):
        store.get("", f"r{number}").result(LIMIT)


@pytest.mark.parametrize("kind", [b"\x0a", b"\x0d"], ids=["index", "table"])
def test_a_damaged_page_is_told_without_what_is_in_it(opened: Stores, path: Path, kind: bytes) -> None:
    store = opened()
    add_many(store, "r", 200, text=SECRET * 50)
    store.close()
    with path.open("r+b") as file:
        for place in pages_of(path, kind):
            file.seek(place)
            file.write(b"\xff" * 100 + SECRET.encode() * 600)
    with pytest.raises(StoreError, match="SQLITE_CORRUPT") as told:
        read_all(opened)
    assert SECRET not in str(told.value)
