"""Responses that outlive their requests, in SQLite. One thread commits all work that has come meanwhile together.

Acknowledged work is on the disk. A response is in the file before its client knows of it, so one that was running when
the server ended is reported as failed after the next start.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyllmcancel.server.responses.storage import database, rows
from pyllmcancel.server.responses.storage.rows import LOST, Part, Stored, said
from pyllmcancel.server.responses.storage.writer import Writer

logger = logging.getLogger("pyllmcancel.server")

T = TypeVar("T")
MAX_MEMORY_BYTES = 64 << 20  # bytes
SWEEP_SECONDS = 60.0  # between two searches for responses that are too old
SWEPT_AT_ONCE = 64  # of one owner's: on a full disk, the journal has room for a few
FREE_PAGES = 256  # free pages that stay in the file for the next responses
EVER = float("inf")
FREED_AT_ONCE = 64  # pages that are returned to the disk in one commit

ADD = """INSERT INTO responses (owner, id, previous, background, status, used, size, response, input)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
FINISH = """UPDATE responses SET status = ?, used = ?, size = size + ?, response = ?, log = ?
    WHERE owner = ? AND id = ?"""


class Store:
    """Each owner's responses. May be used from any thread; a returned future is done when its work is on the disk, and
    raises StoreError if its work could not be done: then nothing was changed.

    Without a `path` the store is in memory, and has at most `MAX_MEMORY_BYTES`. Responses without use for `max_age`
    seconds are deleted. Of more than `max_bytes` in all, a new response replaces the least recently used ones of the
    owner that has the most. StoreError if the file cannot be the store; a full disk is not an error: nothing is stored
    until there is room.
    """

    def __init__(self, path: Path | None, max_age: float, max_bytes: int) -> None:
        self._path = path
        self._max_age = max_age
        self._max_bytes = max_bytes if path is not None else min(max_bytes, MAX_MEMORY_BYTES)
        self._swept_at = float("-inf")  # written by the thread that commits
        self._commits = Writer(self._connect, self._tidy)

    def _connect(self) -> sqlite3.Connection:
        connection = database.open_database(self._path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            n_lost = connection.execute(
                f"UPDATE responses SET status = '{LOST}' WHERE status IN (?, ?)", database.LIVE
            ).rowcount
            # This reads all responses: a broken file shows up here, and not to a client.
            connection.execute("DELETE FROM held")
            both = "SELECT owner, size FROM responses UNION ALL SELECT owner, size FROM objects"
            connection.execute(f"INSERT INTO held SELECT owner, sum(size) FROM ({both}) GROUP BY owner")
            self._sweep(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            raise database.not_ready(self._path, error) from None
        if n_lost:
            logger.warning("%d responses were running when the last server ended, and are marked as failed", n_lost)
        return connection

    @property
    def full(self) -> bool:
        """True if the last response that was to be stored found no room on the disk."""
        return self._commits.full

    # -- room, in the thread that commits -----------------------------------------------------------------------------

    def _make_room(self, connection: sqlite3.Connection, owner: str, size: int) -> None:
        """Make room for more bytes of an owner's; StoreFullError, and nothing was deleted, if there is no room without
        deleting running responses, or other owners' shares.
        """
        if size > self._max_bytes:
            raise database.StoreFullError(f"the response is longer than the store may be: {self._max_bytes:,} bytes")
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._sweep(connection)
        connection.execute("SAVEPOINT before")
        held = "SELECT coalesce(sum(bytes), 0) FROM held"
        while connection.execute(held).fetchone()[0] + size > self._max_bytes:
            if not any(forget(connection, one, EVER, 1) for one in who_may_lose(connection, owner, size)):
                connection.execute("ROLLBACK TO before")
                connection.execute("RELEASE before")
                raise database.StoreFullError("the store has no room for the response beside those that are running")
        connection.execute("RELEASE before")

    def _sweep(self, connection: sqlite3.Connection) -> None:
        """Delete some of the responses that are too old; the next call continues."""
        begins = time.time() - self._max_age
        owners = connection.execute("SELECT rowid FROM held").fetchall()
        swept = [forget(connection, owner, begins, SWEPT_AT_ONCE) for (owner,) in owners]
        if max(swept, default=0) < SWEPT_AT_ONCE:
            self._swept_at = time.monotonic()

    def _tidy(self, connection: sqlite3.Connection) -> bool:
        """Return free pages to the disk, some at a time; returns whether there are more. In no transaction."""
        if self._path is None:
            return False
        database.reserve(self._path)
        with suppress(sqlite3.Error):  # a failure now costs nobody anything
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free > FREE_PAGES:
                # As a script, because execute() would return one page only.
                connection.executescript(f"PRAGMA incremental_vacuum({min(free - FREE_PAGES, FREED_AT_ONCE)})")
                return bool(free - FREE_PAGES > FREED_AT_ONCE)
        return False

    # -- what is kept -------------------------------------------------------------------------------------------------

    def add(
        self, owner: str, response: Mapping[str, Any], items: Sequence[Any], *, replaces: bool = False
    ) -> Future[None]:
        """Store a response, with the items of its input; it may take the place of one of its id that it `replaces`."""

        def work(connection: sqlite3.Connection) -> None:
            texts = said(response), said(list(items))
            size = sum(map(len, texts))
            self._make_room(connection, owner, size)
            if replaces:  # "or replace" would not be counted by the triggers
                connection.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, response["id"]))
            row = owner, response["id"], response["previous_response_id"], response["background"], response["status"]
            try:
                connection.execute(ADD, (*row, time.time(), size, *texts))
            except sqlite3.IntegrityError:
                raise database.id_taken() from None

        return self._commits.do(work, owner, stores=True)

    def finish(self, owner: str, response: Mapping[str, Any], log: bytes) -> Future[None]:
        """Record the end of a response that was added. If it was deleted since, nothing is stored."""

        def work(connection: sqlite3.Connection) -> None:
            text, key = said(response), (owner, response["id"])
            asked = "SELECT length(response) FROM responses WHERE owner = ? AND id = ?"
            if (found := connection.execute(asked, key).fetchone()) is None:
                return
            grown = len(text) + len(log) - found[0]
            self._make_room(connection, owner, grown)
            connection.execute(FINISH, (response["status"], time.time(), grown, text, log, *key))

        return self._commits.do(work, owner, stores=True)

    def delete(self, owner: str, response_id: str) -> Future[bool]:
        """Delete a response; return whether there was one."""
        gone, key = "DELETE FROM responses WHERE owner = ? AND id = ?", (owner, response_id)
        return self._commits.do(lambda connection: connection.execute(gone, key).rowcount > 0, owner)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def get(self, owner: str, response_id: str) -> Future[Stored | None]:
        """Return a response, if there is one."""
        return self._commits.do(lambda connection: rows.stored_response(connection, owner, response_id), owner)

    def exists(self, owner: str, response_id: str) -> Future[bool]:
        asked, key = "SELECT 1 FROM responses WHERE owner = ? AND id = ?", (owner, response_id)
        return self._commits.do(lambda connection: connection.execute(asked, key).fetchone() is not None, owner)

    def part(self, owner: str, response_id: str, *, output: bool) -> Future[Part]:
        """Return all items up to a response, back to the first response that is not here: input and output of each
        earlier one, its own input and, if `output`, its own output. StoreError if the conversation is circular.
        """
        read = partial(rows.conversation_part, owner=owner, response_id=response_id, output=output)
        return self._commits.do(read, owner)

    def items(self, owner: str, response_ids: Iterable[str]) -> Future[list[dict[str, Any]]]:
        """Return input and output of these responses, without earlier ones; missing responses are left out."""
        return self._commits.do(lambda connection: rows.items_of(connection, owner, response_ids), owner)

    # -- anything else ------------------------------------------------------------------------------------------------

    def do(self, work: Callable[[sqlite3.Connection], T], owner: str, size: int | None = None) -> Future[T]:
        """Have `work` done as a part of a commit; first make room for `size` bytes of the owner's. If there is none,
        the future raises StoreFullError, and nothing was changed.
        """

        def with_room(connection: sqlite3.Connection) -> T:
            if size is not None:
                self._make_room(connection, owner, size)
            return work(connection)

        return self._commits.do(with_room, owner, stores=size is not None)

    def close(self) -> None:
        """Finish all requested work, and close the file. Idempotent."""
        self._commits.close()


# Owners are identified by their rows in `held`, because their names may be damaged.


def who_may_lose(connection: sqlite3.Connection, owner: str, size: int) -> list[int]:
    """Return the owners with more bytes than `owner` will have with the new ones, the largest first; then `owner`."""
    asked = "SELECT coalesce(max(bytes), 0) + ? FROM held WHERE owner = ?"
    (wanted,) = connection.execute(asked, (size, owner)).fetchone()
    larger = "SELECT rowid FROM held WHERE bytes > ? AND owner <> ? ORDER BY bytes DESC"
    own = "SELECT rowid FROM held WHERE owner = ?"
    found = [*connection.execute(larger, (wanted, owner)), *connection.execute(own, (owner,))]
    return [number for (number,) in found]


def forget(connection: sqlite3.Connection, owner: int, used_before: float, most: int) -> int:
    """Delete at most `most` responses that an owner has not used since then, except running ones; return how many
    there were. If there is none, delete files and batches.
    """
    which = """DELETE FROM {0} WHERE rowid IN (
        SELECT rowid FROM {0} WHERE owner = (SELECT owner FROM held WHERE rowid = ?)
        AND used < ? AND {1} ORDER BY used LIMIT ?)"""
    for table, rests in ("responses", f"status NOT IN {database.LIVE}"), ("objects", "busy = 0"):
        if (n := connection.execute(which.format(table, rests), (owner, used_before, most)).rowcount) > 0:
            return n
    return 0
