"""Files and batches in the store: their share of its room, and what a batch that runs needs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyllmcancel.server.batches.storage import BatchStore
from pyllmcancel.server.batches.wire import file_told
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.storage.database import StoreFullError
from tests.support.stores import LIMIT, Stores, response

pytest_plugins = ("tests.support.store_fixtures",)
COUNTED = """SELECT (SELECT sum(bytes) FROM held) = (SELECT sum(size) FROM
    (SELECT size FROM responses UNION ALL SELECT size FROM objects)), (SELECT count(*) FROM pieces)"""


def batch_of(file_id: str) -> dict[str, Any]:
    return {"id": "batch_x", "input_file_id": file_id, "request_counts": {}}


def counted(store: BatchStore) -> tuple[int, int]:
    """Return whether the bytes are those that were counted, and the number of pieces."""
    found: tuple[int, int] = store.store.do(lambda it: it.execute(COUNTED).fetchone(), "").result(LIMIT)
    return found


def add(store: BatchStore, name: str, size: int = 400) -> None:
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
    add(store, "a")
    if runs:
        assert store.begin("", batch_of("a")).result(LIMIT)
    store.store.add("", response("r", text="x" * 200), []).result(LIMIT)
    add(store, "b", 1_400)
    assert (there(store, "a"), there(store, "b"), store.store.get("", "r").result(LIMIT)) == (True, True, None)
    assert counted(store) == (1, 2)
    if runs:
        with pytest.raises(StoreFullError):
            add(store, "c", 2_000)
    else:
        add(store, "c", 2_000)
    assert there(store, "a") is runs
    assert counted(store)[0] == 1


def test_a_line_has_one_result_and_a_batch_gives_its_file_back(opened: Stores) -> None:
    store = BatchStore(opened())
    add(store, "a")
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
