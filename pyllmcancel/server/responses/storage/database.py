"""The store's file: made, or checked, and locked. A file that is not ours is never written to."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from pyllmcancel.errors import Error

APPLICATION = 0x706C6363  # marks the file as this program's
VERSION = 3
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
    log BLOB,
    PRIMARY KEY (owner, id)
);
CREATE INDEX responses_by_use ON responses (owner, used);
"""
# Files and batches, which a file of the same version may lack. `told` is what the owner is shown; `busy` counts the
# running batches that need the object. A file of results consists of pieces of its batch, which is its `source`: those
# of the lines that have `failed`, or of the others.
OBJECTS = """
CREATE TABLE IF NOT EXISTS objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    busy INTEGER NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL,
    told TEXT NOT NULL,
    source INTEGER,
    failed INTEGER NOT NULL,
    UNIQUE (owner, id)
);
CREATE TABLE IF NOT EXISTS pieces (
    object INTEGER NOT NULL,
    number INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (object, number)
);
"""
# The bytes of each owner. The table is in memory, so that a deletion writes less, and is rolled back with its
# transaction.
COUNTED = """
CREATE TEMP TRIGGER added_to_{0} AFTER INSERT ON main.{0} BEGIN
    INSERT INTO held VALUES (new.owner, new.size) ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER changed_in_{0} AFTER UPDATE OF size ON main.{0} BEGIN
    UPDATE held SET bytes = bytes + new.size - old.size WHERE owner = new.owner;
END;
CREATE TEMP TRIGGER deleted_from_{0} AFTER DELETE ON main.{0} BEGIN
    UPDATE held SET bytes = bytes - old.size WHERE owner = old.owner;
END;
"""
HELD = f"""
CREATE TEMP TABLE held (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
{COUNTED.format("responses")} {COUNTED.format("objects")}
CREATE TEMP TRIGGER emptied AFTER DELETE ON main.objects BEGIN
    DELETE FROM pieces WHERE object = coalesce(old.source, old.number) AND failed = old.failed;
END;
"""
LIVE = ("queued", "in_progress")
OURS = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"

# The size of the journal in bytes, which is never less: on a full disk a deletion finds its room there.
RESERVE = 1 << 20
FULL = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_DIR_FSYNC")
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StoreError(Error):
    """The store cannot do something: its client gets the message with `status`, `code`, and the field at fault."""

    def __init__(self, message: str, status: int = 500, code: str = "storage_failed", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class StoreFullError(StoreError):
    """There is no room for a response: the disk is full, or the store's limit is too small."""

    def __init__(self, message: str) -> None:
        super().__init__(message, 507, "storage_full")


class DiskFullError(StoreFullError):
    """The disk has no room, or refuses writes."""


def not_found(response_id: str) -> StoreError:
    return StoreError(f"Response with id '{response_id[:300]}' not found.", 404, "response_not_found")


def damaged(name: str) -> StoreError:
    return StoreError(f"What is stored as '{name[:300]}' is damaged, and can be deleted.", 500, "response_damaged")


def too_long(why: str) -> StoreError:
    return StoreError(why, 400, "invalid_request", "previous_response_id")


def id_taken() -> StoreError:
    message = "a response of this id is stored: send another X-Request-Id, or none"
    return StoreError(message, 400, "bad_id", "X-Request-Id")


def open_database(path: Path | None) -> sqlite3.Connection:
    """Return a connection that has exclusive use of the file while this process lives; None: in memory. StoreError,
    with the file's name, if it cannot be the store; DiskFullError if there is no room to create one.

    No lock file is needed: the system releases the lock, however the process ends.
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
    """Make the file private: it contains prompts. SQLite gives the files that it puts beside this one the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Closed before SQLite opens it: closing any descriptor of a file releases this process's locks on it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _ready(connection: sqlite3.Connection) -> sqlite3.Connection:
    # SQLite's text may be damaged. It is decoded where its response is known, so that an error does not show the text.
    connection.text_factory = bytes
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    is_new = _is_new(connection)
    if is_new:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # A journal that keeps its size needs no room for the next writes.
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute(f"PRAGMA journal_size_limit = {RESERVE}")
    # A commit is on the disk before it is acknowledged, even if the machine goes down.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.executescript("BEGIN EXCLUSIVE; COMMIT;")  # fails if the file is read-only, or another process has it
    if is_new:
        connection.executescript(f"BEGIN; {SCHEMA} {OURS} COMMIT;")
    connection.executescript(OBJECTS)
    connection.executescript(HELD)
    return connection


def _is_new(connection: sqlite3.Connection) -> bool:
    """Return whether the file is empty; StoreError if it has other content than a store of this version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return True
    if application != APPLICATION:
        raise StoreError("is another program's database; name another file by --store")
    if version != VERSION:
        raise StoreError(f"is of version {version}, this server knows version {VERSION}: name another file by --store")
    return False


def reserve(path: Path) -> None:
    """Make the journal as long as a deletion may need, if there is room for that now.

    The connection must be open and have no transaction: SQLite deletes the journal of an empty file.
    """
    with suppress(OSError), open(f"{path}-journal", "ab", opener=_private) as journal:
        # SQLite ignores everything after a journal's records.
        journal.write(bytes(max(0, RESERVE - journal.tell())))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def name_of(error: sqlite3.Error) -> str:
    """Return SQLite's name of an error. Its message may contain a piece of a prompt, or of another program's file."""
    return str(getattr(error, "sqlite_errorname", type(error).__name__))


def not_ready(path: Path | None, error: sqlite3.Error) -> Error:
    """Return why a file cannot be the store."""
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
    """Return why an operation of the store failed."""
    name = name_of(error)
    if name in FULL:
        return DiskFullError("the response could not be stored: the disk is full")
    if name == "SQLITE_TOOBIG":
        return StoreFullError("the response could not be stored: it is too long")
    return StoreError(f"the store failed ({name})")
