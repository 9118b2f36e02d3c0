"""One thread for one connection: what has come meanwhile is committed together, so that many wait for the disk once."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from pyllmcancel.server.responses.database import StoreError, StoreFullError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_TOOBIG)
MOST_AT_ONCE = 256  # pieces of work in a commit


class Commits:
    """Does work in its thread; a piece is done when it is on the disk. May be used from any thread.

    Parameters
    ----------
    own_errors
        What one piece of work may end with, and the others in its commit need not know.
    """

    def __init__(self, connection: sqlite3.Connection, own_errors: tuple[type[Exception], ...]) -> None:
        self._connection = connection
        self._own_errors = own_errors
        self._todo: queue.SimpleQueue[tuple[Work, Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # These two are written under the lock. The thread begins with the first work.
        self._thread: threading.Thread | None = None
        self._closed = False

    def do(self, work: Callable[[sqlite3.Connection], T]) -> Future[T]:
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # a waiter that is cancelled takes nothing back
        with self._lock:
            if self._closed:
                done.set_exception(StoreError("the store is closed"))
                return done
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pyllmcancel-store", daemon=True)
                self._thread.start()
            self._todo.put((work, done))
        return done

    def _run(self) -> None:
        while (first := self._todo.get()) is not None:
            batch, ends = [first], False
            while len(batch) < MOST_AT_ONCE and not ends and not self._todo.empty():
                more = self._todo.get()
                if more is None:
                    ends = True
                else:
                    batch.append(more)
            self._commit(batch)
            if ends:
                return

    def _commit(self, batch: list[tuple[Work, Future[Any]]]) -> None:
        """All in one commit; if that fails, each in its own, so that one costs no other."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._outcome(work) for work, _ in batch]
            self._connection.execute("COMMIT")
        except Exception as error:
            if self._connection.in_transaction:  # some errors have ended it
                self._connection.execute("ROLLBACK")
            if len(batch) > 1:
                for one in batch:
                    self._commit([one])
                return
            outcomes = [told(error)]
        for (_, done), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)

    def _outcome(self, work: Work) -> Any:
        try:
            return work(self._connection)
        except self._own_errors as error:
            return error

    def close(self) -> None:
        """Do what was asked until now, and close the connection. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
            if closed:
                return
            self._todo.put(None)
        if self._thread is not None:
            self._thread.join()
        self._connection.close()


def told(error: Exception) -> Exception:
    """What the caller gets."""
    if not isinstance(error, sqlite3.Error):
        return error
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in FULL:
        return StoreFullError(f"the response could not be stored: {error}")
    return StoreError(f"the store failed: {error}")
