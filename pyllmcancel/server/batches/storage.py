"""Files and batches in the store of responses."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyllmcancel.server.batches.lines import Result
from pyllmcancel.server.batches.wire import BATCH, INPUT, OUTPUT, Told, file_told
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses.storage.rows import checked, said, text_of
from pyllmcancel.server.responses.storage.store import Store

PIECE = 1 << 16  # bytes of an uploaded file in a row
AT_ONCE = 64  # rows that are read at once
OF_BATCH = 2  # a value of `failed` that no piece has
NUMBER = "(SELECT number FROM objects WHERE owner = ? AND id = ?)"
ADD = """INSERT INTO objects (owner, id, kind, told, size, busy, source, failed, used)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
CHANGE = f"UPDATE objects SET told = ?, size = size + ? WHERE number = {NUMBER}"
# A line has one result: a second one is ignored.
RESULT = f"INSERT OR IGNORE INTO pieces SELECT {NUMBER}, ?, ?, ?"


@dataclass(frozen=True, slots=True)
class BatchStore:
    """Each owner's files and batches. A returned future is done when its work is on the disk, and raises as `Store`."""

    store: Store

    def add_file(self, owner: str, file: Told, content: bytes) -> Future[None]:
        told = said(file)
        size = len(told) + len(content)

        def work(connection: sqlite3.Connection) -> None:
            row = connection.execute(ADD, (owner, file["id"], INPUT, told, size, 0, None, 0, time.time())).lastrowid
            pieces = ((row, at, 0, content[at : at + PIECE]) for at in range(0, len(content), PIECE))
            connection.executemany("INSERT INTO pieces VALUES (?, ?, ?, ?)", pieces)

        return self.store.do(work, owner, size)

    def delete_file(self, owner: str, file_id: str) -> Future[bool]:
        """Delete a file that no running batch needs; return whether there was one."""
        gone = f"DELETE FROM objects WHERE owner = ? AND id = ? AND busy = 0 AND kind <> '{BATCH}'"
        return self.store.do(lambda connection: connection.execute(gone, (owner, file_id)).rowcount > 0, owner)

    async def content(self, owner: str, file_id: str) -> AsyncIterator[bytes]:
        """Iterate over the pieces of a file."""
        asked = f"""SELECT pieces.number, content FROM pieces JOIN objects
            ON object = coalesce(source, objects.number) AND pieces.failed = objects.failed
            WHERE owner = ? AND id = ? AND pieces.number > ? ORDER BY pieces.number LIMIT {AT_ONCE}"""
        after = -1
        while pieces := await asyncio.wrap_future(self.store.do(partial(_rows, asked, (owner, file_id, after)), owner)):
            yield b"".join(piece for _, piece in pieces)
            after = pieces[-1][0]

    async def told(self, kinds: Sequence[str], where: str, *values: Any) -> list[tuple[str, Any]]:
        """Return some objects of these kinds as their owners are shown them, each with its owner."""
        asked = f"SELECT owner, id, told FROM objects WHERE kind IN ({', '.join('?' * len(kinds))}) AND {where}"

        def work(connection: sqlite3.Connection) -> list[tuple[str, Any]]:
            rows = _rows(asked, (*kinds, *values), connection)
            return [(text_of(owner), _read(text_of(name), told)) for owner, name, told in rows]

        return await asyncio.wrap_future(self.store.do(work, ""))

    async def get(self, owner: str, name: str, *kinds: str) -> Any:
        """Return what the owner is shown of a file or a batch; ApiError if there is none."""
        for _, told in await self.told(kinds, "owner = ? AND id = ?", owner, name):
            return told
        raise ApiError(404, f"there is no {'batch' if BATCH in kinds else 'file'} of this id", code="not_found")

    async def page(self, owner: str, kinds: Sequence[str], limit: int, after: str | None, order: str = "desc") -> Told:
        """Return a page of files or batches, in the order of their creation."""
        begin = f"AND number {'<' if order == 'desc' else '>'} {NUMBER}" if after else ""
        where = f"owner = ? {begin} ORDER BY number {order} LIMIT {limit + 1}"
        found = [told for _, told in await self.told(kinds, where, owner, *((owner, after) if after else ()))]
        data = found[:limit]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": len(found) > limit}

    def begin(self, owner: str, batch: Told) -> Future[bool]:
        """Store a new batch; False, and nothing is changed, if its input is no file of the owner's."""
        told, now = said(batch), time.time()
        used = "UPDATE objects SET busy = busy + 1, used = ? WHERE owner = ? AND id = ? AND kind = 'batch'"

        def work(connection: sqlite3.Connection) -> bool:
            if not connection.execute(used, (now, owner, batch["input_file_id"])).rowcount:
                return False
            connection.execute(ADD, (owner, batch["id"], BATCH, told, len(told), 1, None, OF_BATCH, now))
            return True

        return self.store.do(work, owner, len(told))

    def save(self, owner: str, batch: Told, results: Sequence[Result] = ()) -> Future[None]:
        """Store the present state of a batch, with more results."""
        told, key = said(batch), (owner, batch["id"])
        size = sum(len(content) for _, _, content in results)

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(RESULT, [(*key, *one) for one in results])
            connection.execute(CHANGE, (told, size, *key))

        return self.store.do(work, owner, size if results else None)

    def results(self, owner: str, name: str) -> Future[dict[int, int]]:
        """Return the numbers of the lines that have a result, each with 1 if it has failed."""
        asked = f"SELECT number, failed FROM pieces WHERE object = {NUMBER}"
        return self.store.do(lambda connection: dict(_rows(asked, (owner, name), connection)), owner)

    def finish(self, owner: str, batch: Told) -> Future[None]:
        """Store the end of a batch, and the files of its results."""
        name, now = batch["id"], time.time()

        def result_file(connection: sqlite3.Connection, word: str, failed: int) -> tuple[str | None, int, int]:
            asked = f"SELECT object, count(*), sum(length(content)) FROM pieces WHERE object = {NUMBER} AND failed = ?"
            row, n_lines, size = connection.execute(asked, (owner, name, failed)).fetchone()
            if not n_lines:
                return None, 0, 0
            file_id, filename = name.replace("batch_", f"file-{word}-"), f"{name}_{word}.jsonl"
            told = said(file_told(file_id, "batch_output", filename, size, now))
            connection.execute(ADD, (owner, file_id, OUTPUT, told, size, 0, row, failed, now))
            return file_id, n_lines, size

        def work(connection: sqlite3.Connection) -> None:
            counts = batch["request_counts"]
            batch["output_file_id"], counts["completed"], n_bytes = result_file(connection, "output", 0)
            batch["error_file_id"], counts["failed"], more_bytes = result_file(connection, "error", 1)
            free = "UPDATE objects SET busy = busy - 1, used = ? WHERE owner = ? AND id IN (?, ?)"
            connection.execute(free, (now, owner, name, batch["input_file_id"]))
            connection.execute(CHANGE, (said(batch), -n_bytes - more_bytes, owner, name))

        return self.store.do(work, owner)


def _rows(asked: str, values: Sequence[Any], connection: sqlite3.Connection) -> list[Any]:
    return connection.execute(asked, values).fetchall()


def _read(name: str, told: bytes) -> Any:
    with checked(name):
        return json.loads(text_of(told))
