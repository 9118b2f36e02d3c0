"""Responses that outlive their requests, in SQLite: one thread, which commits what has come meanwhile together.

What is acknowledged is on the disk. A response that was running when the server ended is found as failed at the next
start: it is in the file from the moment at which its client knew of it.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyllmcancel.server.responses.commits import Commits
from pyllmcancel.server.responses.database import (
    LIVE,
    LongConversationError,
    MissingResponseError,
    ResponseExistsError,
    StoreError,
    StoreFullError,
    open_database,
)

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

logger = logging.getLogger("pyllmcancel.server")

MOST_IN_MEMORY = 64 << 20  # bytes
MOST_OF_CONVERSATION = 16 << 20  # bytes of all responses of one; no model's context holds as much
NOTED_SECONDS = 600.0  # a use that soon after another is not written down
SWEEP_SECONDS = 60.0  # between two looks for what is too old
ENDED_WITH_SERVER = {"code": "server_error", "message": "the server ended before the response did"}


@dataclass(frozen=True, slots=True)
class Kept:
    """A response as it was kept.

    Attributes
    ----------
    response
        JSON, as its client gets it.
    log
        JSON, from which its events can be told again; None of one that was not in the background.
    """

    response: str
    background: bool
    status: str
    log: str | None


@dataclass(frozen=True, slots=True)
class Part:
    """Of a conversation, up to one of its responses.

    Attributes
    ----------
    missing
        The response that it goes on from, and that is not here.
    """

    items: list[dict[str, Any]]
    missing: str | None
    n_bytes: int


OWN_ERRORS = (LongConversationError, MissingResponseError, ResponseExistsError, StoreFullError)


class Store:
    """Each owner's responses. May be used from any thread; what is returned is done when it is on the disk.

    Parameters
    ----------
    path
        None: in memory.
    max_age
        Seconds after its last use until a response is forgotten.
    max_bytes
        Of all responses together: one more takes the place of those that were not used for longest. In memory there are
        `MOST_IN_MEMORY` at most.

    Raises
    ------
    StoreError
        The file cannot be the store.
    """

    def __init__(self, path: Path | None, max_age: float, max_bytes: int) -> None:
        self._max_age = max_age
        self._max_bytes = max_bytes if path is not None else min(max_bytes, MOST_IN_MEMORY)
        self._swept_at = time.monotonic()  # written by the thread that commits
        connection = open_database(path)
        try:
            begin(connection, max_age)
        except sqlite3.Error as error:
            connection.close()
            raise StoreError(f"the store {path} cannot be read: {error}; move it away, or name another file") from error
        self._commits = Commits(connection, OWN_ERRORS)

    # -- what is kept -------------------------------------------------------------------------------------------------

    def add(self, owner: str, response: Mapping[str, Any], items: Sequence[Any]) -> Future[None]:
        """Keep a response, with the items of its input.

        Raises
        ------
        StoreFullError, ResponseExistsError
            By what is returned. Nothing was changed.
        """

        def work(connection: sqlite3.Connection) -> None:
            texts = said(response), said(list(items))
            size = sum(map(len, texts))
            self._make_room(connection, size)
            row = owner, response["id"], response["previous_response_id"], response["background"], response["status"]
            write(
                connection,
                "INSERT INTO responses (owner, id, previous, background, status, used, size, response, input)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, time.time(), size, *texts),
            )

        return self._commits.do(work)

    def finish(self, owner: str, response: Mapping[str, Any], log: str | None) -> Future[None]:
        """Say how a response that was added has ended. Of one that was deleted since nothing is kept."""

        def work(connection: sqlite3.Connection) -> None:
            texts = said(response), log or ""
            key = owner, response["id"]
            found = connection.execute(
                "SELECT size, length(response) FROM responses WHERE owner = ? AND id = ?", key
            ).fetchone()
            if found is None:
                return
            grown = sum(map(len, texts)) - found[1]
            self._make_room(connection, grown)
            write(
                connection,
                "UPDATE responses SET status = ?, used = ?, size = size + ?, response = ?, log = ?"
                " WHERE owner = ? AND id = ?",
                (response["status"], time.time(), grown, *texts, *key),
            )

        return self._commits.do(work)

    def delete(self, owner: str, response_id: str) -> Future[bool]:
        """Whether there was one."""

        def work(connection: sqlite3.Connection) -> bool:
            return self._forget(connection, "owner = ? AND id = ?", (owner, response_id))

        return self._commits.do(work)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def get(self, owner: str, response_id: str) -> Future[Kept | None]:
        def work(connection: sqlite3.Connection) -> Kept | None:
            asked = "SELECT response, background, status, log FROM responses WHERE owner = ? AND id = ?"
            row = connection.execute(asked, (owner, response_id)).fetchone()
            return None if row is None else Kept(row[0], bool(row[1]), row[2], row[3])

        return self._commits.do(work)

    def conversation(self, owner: str, response_id: str, *, output: bool) -> Future[list[dict[str, Any]]]:
        """All items up to a response: the input and the output of each that came before, and its own input.

        With its own `output`, if that is asked for.

        Raises
        ------
        MissingResponseError, LongConversationError
            By what is returned: one of them is not there, or all are too long.
        """

        def work(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            part = _part(connection, owner, response_id, output=output)
            if part.missing is not None:
                raise MissingResponseError(part.missing)
            return part.items

        return self._commits.do(work)

    def part(self, owner: str, response_id: str, *, output: bool) -> Future[Part]:
        """The same, back to the first response that is not here.

        Raises
        ------
        LongConversationError
            By what is returned.
        """
        return self._commits.do(lambda connection: _part(connection, owner, response_id, output=output))

    def items(self, owner: str, response_ids: Iterable[str]) -> Future[list[dict[str, Any]]]:
        """Input and output of these responses, without what came before; what is not there is left out.

        Raises
        ------
        LongConversationError
            By what is returned.
        """

        def work(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            length = 0
            for response_id in response_ids:
                asked = "SELECT size, input, response FROM responses WHERE owner = ? AND id = ?"
                for size, given, answered in connection.execute(asked, (owner, response_id)):
                    length = checked_length(length + size)
                    found += json.loads(given) + json.loads(answered)["output"]
            return found

        return self._commits.do(work)

    # -- room ---------------------------------------------------------------------------------------------------------

    def _make_room(self, connection: sqlite3.Connection, size: int) -> None:
        """Forget what is too old, and what was not used for longest."""
        if size > self._max_bytes:
            raise StoreFullError(f"the response is longer than the store may be, which is {self._max_bytes:,} bytes")
        now = time.monotonic()
        if now - self._swept_at > SWEEP_SECONDS:
            self._swept_at = now
            self._forget(connection, "used < ? AND status NOT IN (?, ?)", (time.time() - self._max_age, *LIVE))
        while total(connection) + size > self._max_bytes:
            oldest = "rowid IN (SELECT rowid FROM responses WHERE status NOT IN (?, ?) ORDER BY used LIMIT 1)"
            if not self._forget(connection, oldest, LIVE):
                raise StoreFullError("the store is full of responses that are running")

    @staticmethod
    def _forget(connection: sqlite3.Connection, which: str, values: Sequence[Any]) -> bool:
        """Whether there were any."""
        gone = connection.execute(f"DELETE FROM responses WHERE {which} RETURNING rowid", values).fetchall()
        if gone:
            connection.execute("PRAGMA incremental_vacuum(256)").fetchall()
        return bool(gone)

    def close(self) -> None:
        """Do what was asked until now, and close the file. Idempotent."""
        self._commits.close()


def begin(connection: sqlite3.Connection, max_age: float) -> None:
    """Mark what the last server has left, and forget what is too old."""
    connection.execute("BEGIN IMMEDIATE")
    left = connection.execute("SELECT rowid, response FROM responses WHERE status IN (?, ?)", LIVE).fetchall()
    for row, text in left:
        ended = json.loads(text) | {"status": "failed", "error": ENDED_WITH_SERVER}
        changed = "UPDATE responses SET status = 'failed', response = ? WHERE rowid = ?"
        connection.execute(changed, (said(ended), row))
    connection.execute("DELETE FROM responses WHERE used < ?", (time.time() - max_age,))
    # Goes through all of them: a file that is broken shows it here, and not to a client.
    connection.execute("UPDATE total SET bytes = (SELECT coalesce(sum(size), 0) FROM responses)")
    connection.execute("COMMIT")
    if left:
        logger.warning("%d responses were running when the last server ended: they are failed", len(left))


def write(connection: sqlite3.Connection, statement: str, values: Sequence[Any]) -> None:
    try:
        connection.execute(statement, values)
    except sqlite3.IntegrityError as error:
        raise ResponseExistsError(str(error)) from error


def total(connection: sqlite3.Connection) -> int:
    """Bytes of all responses."""
    (found,) = connection.execute("SELECT bytes FROM total").fetchone()
    return int(found)


def _part(connection: sqlite3.Connection, owner: str, response_id: str, *, output: bool) -> Part:
    turns: list[tuple[str, str]] = []
    missing = None
    try:
        for turn in _turns(connection, owner, response_id):
            turns.append(turn)  # noqa: PERF402 - those before the one that is missing count
    except MissingResponseError as error:
        if error.circular:
            raise
        missing = error.response_id
    items: list[dict[str, Any]] = []
    for number, (asked, answered) in enumerate(reversed(turns), 1):
        items += json.loads(asked)
        if output or number < len(turns):
            items += json.loads(answered)["output"]
    return Part(items, missing, sum(len(text) for turn in turns for text in turn))


def _turns(connection: sqlite3.Connection, owner: str, response_id: str) -> Iterator[tuple[str, str]]:
    """Input and response, from the last to the first; each is used, so that none is forgotten before the others."""
    following: str | None = response_id
    known: set[str] = set()
    length, now = 0, time.time()
    while following is not None:
        if following in known:  # it took the id of one that was deleted, and that others go on from
            raise MissingResponseError(following, circular=True)
        known.add(following)
        asked = "SELECT rowid, used, size, previous, input, response FROM responses WHERE owner = ? AND id = ?"
        row = connection.execute(asked, (owner, following)).fetchone()
        if row is None:
            raise MissingResponseError(following)
        number, used, size, following, *texts = row
        length = checked_length(length + size)
        if now - used > NOTED_SECONDS:
            connection.execute("UPDATE responses SET used = ? WHERE rowid = ?", (now, number))
        yield texts[0], texts[1]


def checked_length(length: int) -> int:
    if length > MOST_OF_CONVERSATION:
        raise LongConversationError(f"the conversation has more than {MOST_OF_CONVERSATION:,} bytes")
    return length


def said(value: Any) -> str:
    """JSON. Of a list each entry by itself: for as long as one is written no other thread of Python runs."""
    if isinstance(value, list):
        return f"[{','.join([said(entry) for entry in value])}]"
    return json.dumps(value, separators=(",", ":"))
