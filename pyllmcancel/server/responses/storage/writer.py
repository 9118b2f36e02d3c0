"""One thread for one connection. It commits together what has come meanwhile: many callers wait for the disk once."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pyllmcancel.server.responses.storage.database import DiskFullError, StoreError, not_done

logger = logging.getLogger("pyllmcancel.server")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

MAX_AT_ONCE = 64  # pieces of work in a commit


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A piece of work, and its caller's future. `stores`: the work needs room on the disk."""

    work: Work
    done: Future[Any]
    stores: bool

    def end(self, outcome: Any) -> None:
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class Writer:
    """Does work in its thread; a piece is done when it is on the disk. May be used from any thread.

    Owners take turns, so that an owner with much work does not delay another. While the disk is full, work that needs
    room fails, but each new piece is tried: when there is room, storing continues.

    `connect` makes the connection. If the disk has no room for that, it is called again for the next work; any other
    StoreError of it is raised here. With a StoreError a piece of work may end without any effect on the others in its
    commit. `tidy` is called between two commits; it returns whether there is more to tidy when no work waits.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], tidy: Callable[[sqlite3.Connection], bool]) -> None:
        self._connect = connect
        self._tidy = tidy
        self._changed = threading.Condition()
        # The next three are written under the lock of the condition. The thread begins with the first work.
        self._todo: dict[str, deque[Piece]] = {}  # by owner, in the order of their turns
        self._thread: threading.Thread | None = None
        self._closed = False
        self.full = False  # True if the last work that needed room on the disk found none; written by the thread
        self._connection: sqlite3.Connection | None = None  # used by the thread only, after it has begun
        try:
            self._connection = connect()
        except DiskFullError as error:
            self._note_room(error)

    def do(self, work: Callable[[sqlite3.Connection], T], owner: str, *, stores: bool = False) -> Future[T]:
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # a waiter that is cancelled does not cancel the work
        with self._changed:
            if self._closed:
                done.set_exception(StoreError("the store is closed"))
                return done
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pyllmcancel-store", daemon=True)
                self._thread.start()
            self._todo.setdefault(owner, deque()).append(Piece(work, done, stores))
            self._changed.notify()
        return done

    def _run(self) -> None:
        while pieces := self._next():
            self._commit(pieces)
            while self._connection is not None and self._tidy(self._connection) and not (self._todo or self._closed):
                pass

    def _next(self) -> list[Piece]:
        """Wait for the next pieces, which are done together, and return them; none after the last."""
        pieces: list[Piece] = []
        with self._changed:
            self._changed.wait_for(lambda: self._todo or self._closed)
            while self._todo and len(pieces) < MAX_AT_ONCE:
                owner = next(iter(self._todo))
                waiting = self._todo.pop(owner)
                pieces.append(waiting.popleft())
                if waiting:
                    self._todo[owner] = waiting  # the owner goes behind the others
        return pieces

    def _commit(self, pieces: list[Piece]) -> None:
        """Do all pieces in one commit; if that fails, each in its own, so that one failure affects no other."""
        try:
            outcomes = self._attempt(pieces)
        except Exception as error:
            if len(pieces) > 1:
                for piece in pieces:
                    self._commit([piece])
                return
            outcomes = [self._outcome_of_one(pieces[0], shown(error))]
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if piece.stores and (isinstance(outcome, DiskFullError) or not isinstance(outcome, Exception)):
                self._note_room(outcome)
            piece.end(outcome)

    def _outcome_of_one(self, piece: Piece, error: Exception) -> Any:
        """Return the outcome; if there was no room, that of a second attempt, which does not overwrite deleted data."""
        if not isinstance(error, DiskFullError) or self._connection is None:
            return error
        self._connection.execute("PRAGMA secure_delete = FAST")
        try:
            return self._attempt([piece])[0]
        except Exception as again:
            return shown(again)
        finally:
            self._connection.execute("PRAGMA secure_delete = ON")

    def _attempt(self, pieces: list[Piece]) -> list[Any]:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [self._outcome(piece.work) for piece in pieces]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # some errors end the transaction
                connection.execute("ROLLBACK")
            raise
        return outcomes

    def _outcome(self, work: Work) -> Any:
        try:
            return work(self._connection)  # type: ignore[arg-type]
        except StoreError as error:
            return error

    def _note_room(self, outcome: Any) -> None:
        """Log when the disk becomes full, and when it no longer is."""
        full = isinstance(outcome, DiskFullError)
        if full and not self.full:
            logger.warning("%s; until there is room no response is stored, and everything else is served", outcome)
        elif self.full and not full:
            logger.info("the disk has room again: responses are stored")
        self.full = full

    def close(self) -> None:
        """Finish all requested work, and close the connection. Idempotent."""
        with self._changed:
            closed, self._closed = self._closed, True
            self._changed.notify()
        if closed:
            return
        if self._thread is not None:
            self._thread.join()
        if self._connection is not None:
            with suppress(sqlite3.Error):  # a damaged file, or a full disk: all acknowledged work is there
                self._connection.close()


def shown(error: Exception) -> Exception:
    """Return the error that the caller gets, without any message of SQLite's."""
    return not_done(error) if isinstance(error, sqlite3.Error) else error
