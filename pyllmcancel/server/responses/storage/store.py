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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyllmcancel.server.responses.storage import rows
from pyllmcancel.server.responses.storage.database import (
    LIVE,
    DamagedResponseError,
    LongConversationError,
    MissingResponseError,
    ResponseExistsError,
    StoreFullError,
    not_ready,
    open_database,
)
from pyllmcancel.server.responses.storage.eviction import Eviction
from pyllmcancel.server.responses.storage.rows import LOST, Part, Stored, said
from pyllmcancel.server.responses.storage.writer import Writer

logger = logging.getLogger("pyllmcancel.server")

T = TypeVar("T")
MAX_MEMORY_BYTES = 64 << 20  # bytes
OWN_ERRORS = (DamagedResponseError, LongConversationError, MissingResponseError, ResponseExistsError, StoreFullError)


class Store:
    """Each owner's responses. May be used from any thread; a returned future is done when its work is on the disk, and
    raises one of `OWN_ERRORS` if its work could not be done: then nothing was changed.

    Without a `path` the store is in memory, and has at most `MAX_MEMORY_BYTES`. Responses without use for `max_age`
    seconds are deleted. Of more than `max_bytes` in all, a new response replaces the least recently used ones of the
    owner that has the most. StoreError if the file cannot be the store; a full disk is not an error: nothing is stored
    until there is room.
    """

    def __init__(self, path: Path | None, max_age: float, max_bytes: int) -> None:
        self._path = path
        self._room = Eviction(path, max_age, max_bytes if path is not None else min(max_bytes, MAX_MEMORY_BYTES))
        self._commits = Writer(self._connect, OWN_ERRORS, self._room.tidy)

    def _connect(self) -> sqlite3.Connection:
        connection = open_database(self._path)
        try:
            connection.execute("BEGIN IMMEDIATE")
            n_lost = connection.execute(f"UPDATE responses SET status = '{LOST}' WHERE status IN (?, ?)", LIVE).rowcount
            self._room.begin(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            raise not_ready(self._path, error) from None
        if n_lost:
            logger.warning("%d responses were running when the last server ended, and are marked as failed", n_lost)
        return connection

    @property
    def full(self) -> bool:
        """True if the last response that was to be stored found no room on the disk."""
        return self._commits.full

    # -- what is kept -------------------------------------------------------------------------------------------------

    def add(
        self, owner: str, response: Mapping[str, Any], items: Sequence[Any], *, replaces: bool = False
    ) -> Future[None]:
        """Store a response, with the items of its input; it may take the place of one of its id that it `replaces`."""

        def work(connection: sqlite3.Connection) -> None:
            texts = said(response), said(list(items))
            size = sum(map(len, texts))
            self._room.make(connection, owner, size)
            if replaces:  # "or replace" would not be counted by the triggers
                connection.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, response["id"]))
            row = owner, response["id"], response["previous_response_id"], response["background"], response["status"]
            write(
                connection,
                "INSERT INTO responses (owner, id, previous, background, status, used, size, response, input)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, time.time(), size, *texts),
            )

        return self._commits.do(work, owner, stores=True)

    def finish(self, owner: str, response: Mapping[str, Any], log: bytes) -> Future[None]:
        """Record the end of a response that was added. If it was deleted since, nothing is stored."""

        def work(connection: sqlite3.Connection) -> None:
            texts = said(response), log
            key = owner, response["id"]
            found = connection.execute(
                "SELECT size, length(response) FROM responses WHERE owner = ? AND id = ?", key
            ).fetchone()
            if found is None:
                return
            grown = sum(map(len, texts)) - found[1]
            self._room.make(connection, owner, grown)
            write(
                connection,
                "UPDATE responses SET status = ?, used = ?, size = size + ?, response = ?, log = ?"
                " WHERE owner = ? AND id = ?",
                (response["status"], time.time(), grown, *texts, *key),
            )

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
        """Return all items up to a response, back to the first response that is not here: the input and the output of
        each earlier one, and its own input. Its own output is included if `output` is true. If the conversation is
        circular, the error is a MissingResponseError.
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
                self._room.make(connection, owner, size)
            return work(connection)

        return self._commits.do(with_room, owner, stores=size is not None)

    def close(self) -> None:
        """Finish all requested work, and close the file. Idempotent."""
        self._commits.close()


def write(connection: sqlite3.Connection, statement: str, values: Sequence[Any]) -> None:
    try:
        connection.execute(statement, values)
    except sqlite3.IntegrityError:
        raise ResponseExistsError("there is already a response of this id") from None
