"""The store's file: made, or found to be what it should be, and locked. What is not ours is never written to."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from pyllmcancel.errors import Error

APPLICATION = 0x706C6363  # says in the file's head whose it is
VERSION = 2
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
CREATE INDEX responses_by_use ON responses (owner, used);
"""
# Version 1 counted the bytes of all owners together.
FROM_VERSION_1 = """
DROP TRIGGER IF EXISTS added; DROP TRIGGER IF EXISTS changed; DROP TRIGGER IF EXISTS deleted;
DROP TABLE IF EXISTS total;
DROP INDEX responses_by_use;
CREATE INDEX responses_by_use ON responses (owner, used);
"""
# Each owner's bytes. In memory, so that a deletion writes less, and taken back with the transaction that changed them.
HELD = """
CREATE TEMP TABLE held (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TEMP TRIGGER added AFTER INSERT ON main.responses BEGIN
    INSERT INTO held VALUES (new.owner, new.size) ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER changed AFTER UPDATE OF size ON main.responses BEGIN
    UPDATE held SET bytes = bytes + new.size - old.size WHERE owner = new.owner;
END;
CREATE TEMP TRIGGER deleted AFTER DELETE ON main.responses BEGIN
    UPDATE held SET bytes = bytes - old.size WHERE owner = old.owner;
END;
"""
LIVE = ("queued", "in_progress")
OURS = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"

# Bytes of the journal, which is never shorter: on a full disk a deletion finds its room there.
RESERVE = 1 << 20
FULL = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_DIR_FSYNC")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreError(Error):
    """The file cannot be the store."""


class StoreFullError(Error):
    """There is no room for a response: the disk is full, or the store's limit is too small."""


class DiskFullError(StoreFullError):
    """The disk has no room, or does not take what is written."""


class DamagedResponseError(Error):
    """The file's record under this id is no response. It can be deleted."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"the record of the response {response_id!r} is damaged")
        self.response_id = response_id


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
        The file cannot be the store; the message has its name.
    DiskFullError
        There is no room to begin one.
    """
    if path is None:
        return _ready(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
    try:
        _make_private(path)
        connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFullError(f"the disk has no room for the store {path}") from error
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreError(f"the store {path} cannot be opened ({name_of(error)})") from None
    try:
        _ready(connection)
    except StoreError as error:
        connection.close()
        raise StoreError(f"the store {path} {error}") from error
    except sqlite3.Error as error:
        connection.close()
        raise not_ready(path, error) from None
    reserve(path)
    return connection


def _make_private(path: Path) -> None:
    """Prompts are in it: nobody else may read it, nor what SQLite puts beside it, which gets the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Closed before SQLite opens it: to close any descriptor of a file gives back this process's locks on it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _ready(connection: sqlite3.Connection) -> sqlite3.Connection:
    # SQLite's text may be damaged. It is decoded where its response is known, and an error there does not show it.
    connection.text_factory = bytes
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    version = _version(connection)
    if not version:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # A journal that stays as long as it was needs no room for what it is written with next.
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute(f"PRAGMA journal_size_limit = {RESERVE}")
    # A commit is on the disk before it is acknowledged, also if the machine goes down.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.executescript("BEGIN EXCLUSIVE; COMMIT;")  # fails if the file is read-only, or another's
    if version != VERSION:
        connection.executescript(f"BEGIN; {SCHEMA if not version else FROM_VERSION_1} {OURS} COMMIT;")
    connection.executescript(HELD)
    return connection


def _version(connection: sqlite3.Connection) -> int:
    """The version of the store in the file; 0 if nothing is in it, StoreError if something else is."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != APPLICATION:
        raise StoreError("is another program's database; name another file by --store")
    if version not in (1, VERSION):
        raise StoreError(
            f"is of version {version}, and this server knows version {VERSION}: name another file by --store"
        )
    return int(version)


def reserve(path: Path) -> None:
    """Make the journal as long as a deletion may need it, if there is room for that now.

    It must belong to a connection that is open and has no transaction: SQLite deletes the journal of an empty file.
    """
    with suppress(OSError), open(f"{path}-journal", "ab", opener=_private) as journal:
        # What follows a journal's records means nothing to SQLite.
        journal.write(bytes(max(0, RESERVE - journal.tell())))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def name_of(error: sqlite3.Error) -> str:
    """SQLite's name of an error. Its message may have a piece of a prompt, or of another program's file."""
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


def not_ready(path: Path | None, error: sqlite3.Error) -> Error:
    """Why a file cannot be the store."""
    name = name_of(error)
    if name in FULL:
        return DiskFullError(f"the disk has no room for the store {path}")
    match name.partition("_")[2].partition("_")[0]:
        case "BUSY" | "LOCKED":
            why = "is in use by another server; name another file by --store"
        case "NOTADB" | "CORRUPT" | "ERROR":
            why = f"cannot be read ({name}); move it away, or name another file by --store"
        case "READONLY" | "PERM" | "CANTOPEN":
            why = f"cannot be written ({name})"
        case _:
            why = f"cannot be used ({name})"
    return StoreError(f"the store {path} {why}")


def not_done(error: sqlite3.Error) -> Error:
    """Why something was not done in the store."""
    name = name_of(error)
    if name in FULL:
        return DiskFullError("the response could not be stored: the disk is full")
    if name == "SQLITE_TOOBIG":
        return StoreFullError("the response could not be stored: it is too long")
    return StoreError(f"the store failed ({name})")
