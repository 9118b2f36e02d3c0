"""Eviction in the store, when it is full, and of responses that are too old.

The owner that has the most bytes loses its least recently used responses. So an owner loses nothing to others while it
has no more than its share.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from pyllmcancel.server.responses.storage.database import LIVE, StoreFullError, reserve

SWEEP_SECONDS = 60.0  # between two searches for responses that are too old
SWEPT_AT_ONCE = 64  # of one owner's: on a full disk, the journal has room for a few
FREE_PAGES = 256  # free pages that stay in the file for the next responses
EVER = float("inf")
FREED_AT_ONCE = 64  # pages that are returned to the disk in one commit


class Eviction:
    """Keeps the store within its limits. Used by the thread that commits."""

    def __init__(self, path: Path | None, max_age: float, max_bytes: int) -> None:
        self._path = path
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._swept_at = float("-inf")

    def begin(self, connection: sqlite3.Connection) -> None:
        """Count the responses, and delete those that are too old. In a transaction."""
        # This reads all of them: a broken file shows up here, and not to a client.
        connection.execute("DELETE FROM held")
        both = "SELECT owner, size FROM responses UNION ALL SELECT owner, size FROM objects"
        connection.execute(f"INSERT INTO held SELECT owner, sum(size) FROM ({both}) GROUP BY owner")
        self._sweep(connection)

    def make(self, connection: sqlite3.Connection, owner: str, size: int) -> None:
        """Make room for more bytes of an owner's; StoreFullError, and nothing was deleted, if there is no room without
        deleting running responses, or other owners' shares.
        """
        if size > self._max_bytes:
            raise StoreFullError(f"the response is longer than the store may be, which is {self._max_bytes:,} bytes")
        if time.monotonic() - self._swept_at > SWEEP_SECONDS:
            self._sweep(connection)
        connection.execute("SAVEPOINT before")
        held = "SELECT coalesce(sum(bytes), 0) FROM held"
        while connection.execute(held).fetchone()[0] + size > self._max_bytes:
            if not any(forget(connection, one, EVER, 1) for one in who_may_lose(connection, owner, size)):
                connection.execute("ROLLBACK TO before")
                connection.execute("RELEASE before")
                raise StoreFullError("the store has no room for the response beside those that are running")
        connection.execute("RELEASE before")

    def _sweep(self, connection: sqlite3.Connection) -> None:
        """Delete some of the responses that are too old; the next call continues."""
        begins = time.time() - self._max_age
        owners = connection.execute("SELECT rowid FROM held").fetchall()
        swept = [forget(connection, owner, begins, SWEPT_AT_ONCE) for (owner,) in owners]
        if max(swept, default=0) < SWEPT_AT_ONCE:
            self._swept_at = time.monotonic()

    def tidy(self, connection: sqlite3.Connection) -> bool:
        """Return free pages to the disk, some at a time; returns whether there are more. In no transaction."""
        if self._path is None:
            return False
        reserve(self._path)
        with suppress(sqlite3.Error):  # a failure now costs nobody anything
            (free,) = connection.execute("PRAGMA freelist_count").fetchone()
            if free > FREE_PAGES:
                # As a script, because execute() would return one page only.
                connection.executescript(f"PRAGMA incremental_vacuum({min(free - FREE_PAGES, FREED_AT_ONCE)})")
                return bool(free - FREE_PAGES > FREED_AT_ONCE)
        return False


# Owners are identified by their rows in `held`, because their names may be damaged.


def who_may_lose(connection: sqlite3.Connection, owner: str, size: int) -> list[int]:
    """Return the owners that have more than `owner` will have with the new bytes, the largest first, and then that
    owner.
    """
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
    for table, rests in ("responses", f"status NOT IN {LIVE}"), ("objects", "busy = 0"):
        if (n := connection.execute(which.format(table, rests), (owner, used_before, most)).rowcount) > 0:
            return n
    return 0
