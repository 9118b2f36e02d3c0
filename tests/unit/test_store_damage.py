"""A damaged file: what is damaged costs its own response, and nothing of it is repeated."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.storage.database import DamagedResponseError, StoreError
from pyllmcancel.server.responses.storage.rows import Stored
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.server.responses.stored import events_from
from tests.support.stores import LIMIT, Stores, add, add_many, edit, status_of

pytest_plugins = ("tests.support.store_fixtures",)

SECRET = "SECRET"
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
        ("size = 'SECRET'", ("input", "history", "items")),
        (f"previous = {NOT_UTF8}", ("input", "history")),
    ],
)
def test_a_damaged_row_costs_only_its_own_response(opened: Stores, change: str, asked: tuple[str, ...]) -> None:
    store = damaged(opened, change)
    for name in asked:
        with pytest.raises(DamagedResponseError) as told:
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
    with pytest.raises(DamagedResponseError) as told:
        store.part("", "b", output=True).result(LIMIT)
    assert told.value.response_id == "a"
    assert status_of(store, "b") == "completed"


@pytest.mark.parametrize("log", [b"", b"SECRET", zlib.compress(b"SECRET" * 100)[:-1], None])
def test_a_damaged_log_is_not_told(log: bytes | None) -> None:
    with pytest.raises(ApiError) as told:
        events_from(Stored('{"tools": ["SECRET"], "error": null}', True, "completed", log), "resp_a", 0)
    assert (told.value.code, SECRET in str(told.value)) == ("response_damaged", False)


def test_a_damaged_row_that_was_running_does_not_keep_the_server_from_starting(opened: Stores) -> None:
    store = damaged(opened, f"status = 'in_progress', response = {NOT_UTF8}")
    with pytest.raises(DamagedResponseError):
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


@pytest.mark.parametrize("message", ["another program's", "cannot be read"])
def test_what_is_in_a_file_that_is_no_store_is_not_told(opened: Stores, path: Path, message: str) -> None:
    path.parent.mkdir()
    if message == "cannot be read":
        path.write_bytes(SECRET.encode() * 1_000)
    else:
        edit(path, f"CREATE TABLE {SECRET} (x)")
    with pytest.raises(StoreError, match=message) as told:
        opened()
    assert SECRET not in str(told.value)
