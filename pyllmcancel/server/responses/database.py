"""The store's file: made, or found to be what it should be, and locked. What is not ours is never written to."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from pyllmcancel.errors import Error

APPLICATION = 0x706C6363  # says in the file's head whose it is
VERSION = 1
SCHEMA = """
CREATE TABLE responses (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    previous TEXT,
    background INTEGER NOT NULL,
    status TEXT NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL,
    response TEXT NOT NULL,
    input TEXT NOT NULL,
    log TEXT,
    PRIMARY KEY (owner, id)
);
CREATE INDEX responses_by_use ON responses (used);
CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);
CREATE TRIGGER added AFTER INSERT ON responses BEGIN UPDATE total SET bytes = bytes + new.size; END;
CREATE TRIGGER changed AFTER UPDATE OF size ON responses BEGIN
    UPDATE total SET bytes = bytes + new.size - old.size;
END;
CREATE TRIGGER deleted AFTER DELETE ON responses BEGIN UPDATE total SET bytes = bytes - old.size; END;
"""
LIVE = ("queued", "in_progress")
OURS = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"


class StoreError(Error):
    """The file cannot be the store."""


class StoreFullError(Error):
    """There is no room for a response: the disk is full, or the store's bound is too small."""


class MissingResponseError(LookupError):
    """There is no response of this id, or there is none any more; `circular`: another one took its id since."""

    def __init__(self, response_id: str, *, circular: bool = False) -> None:
        super().__init__(response_id)
        self.response_id = response_id
        self.circular = circular


class ResponseExistsError(ValueError):
    """There is a response of this id."""


class LongConversationError(ValueError):
    """A response and those before it are more than anybody can go on from."""


def open_database(path: Path | None) -> sqlite3.Connection:
    """A connection that has the file for itself, as long as this process lives; None: in memory.

    The process needs no lock file: the system gives the lock back, however it ends.

    Raises
    ------
    StoreError
        In words, with the file's name.
    """
    if path is None:
        return _ready(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
    try:
        _make_private(path)
        connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the store {path} cannot be opened: {error}") from error
    try:
        return _ready(connection)
    except StoreError as error:
        connection.close()
        raise StoreError(f"the store {path} {error}") from error
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"the store {path} {_in_words(error)}") from error


def _make_private(path: Path) -> None:
    """Prompts are in it: nobody else may read it, nor what SQLite puts beside it, which gets the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Closed before SQLite opens it: to close any descriptor of a file gives back this process's locks on it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _ready(connection: sqlite3.Connection) -> sqlite3.Connection:
    # Before anything is read: then SQLite keeps its index of the log in memory, and needs no shared file for it.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if _is_empty(connection):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {OURS} COMMIT;")
    else:
        connection.execute("PRAGMA journal_mode = WAL")
    # A commit is on the disk before it is acknowledged, also if the machine goes down.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
    connection.executescript("BEGIN IMMEDIATE; COMMIT;")  # fails if the file is read-only, or another's
    return connection


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing is in the file; StoreError if something else is than a store of this version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return True
    if application != APPLICATION:
        raise StoreError("is another program's database; name another file by --store")
    if version != VERSION:
        raise StoreError(
            f"is of version {version}, and this server knows version {VERSION}: name another file by --store"
        )
    return False


def _in_words(error: sqlite3.Error) -> str:
    match error.sqlite_errorname.partition("_")[2].partition("_")[0] if hasattr(error, "sqlite_errorname") else "":
        case "BUSY" | "LOCKED":
            return "is in use by another server; name another file by --store"
        case "NOTADB" | "CORRUPT":
            return f"cannot be read: {error}; move it away, or name another file by --store"
        case "READONLY" | "PERM" | "CANTOPEN":
            return f"cannot be written: {error}"
        case _:
            return f"cannot be used: {error}"
