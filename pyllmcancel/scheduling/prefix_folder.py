"""A folder of prefixes in files, and their index in memory: `--cache-disk`.

At most a number of bytes, and `MAX_FILES`, which count files of other models and builds, too: several models may use
one folder, one after the other. The owner that has the most bytes loses its least recently used files first; within an
owner, those of sessions last. The time of a file's last change is that of its last use, so that the order survives a
restart. One process uses a folder at a time: it holds a lock on a file in it.

May be used from any thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pyllmcancel.errors import UsageError
from pyllmcancel.scheduling.prefix_file import DamagedFileError, Head, packed, read_head, write
from pyllmcancel.shares import largest_first
from pyllmcancel.system import try_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel._native import SwappedPrefix
    from pyllmcancel.scheduling.swap_space import Holder

logger = logging.getLogger("pyllmcancel.engine")

MAX_FILES = 1024  # each new prompt is compared with those of its owner
SUFFIX = ".prefix"
LOCK = "lock"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A file in the folder."""

    path: Path
    head: Head
    n_bytes: int


class PrefixFolder:
    """The files of a folder, and what is known of them."""

    def __init__(self, path: Path, limit: int) -> None:
        """Take the folder over, and read the heads of its files; UsageError if another process uses it, OSError if it
        cannot be written to.
        """
        self.path = path
        self.limit = limit
        self.n_damaged = 0  # files that were found damaged, and deleted
        self._mutex = threading.Lock()
        self._entries: dict[Path, Entry] = {}  # least recently used first
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = lock_of(path)
        self._read_all()

    def close(self) -> None:
        """Leave the folder to other processes. Idempotent."""
        self._lock.close()

    @property
    def n_bytes(self) -> int:
        with self._mutex:
            return sum(entry.n_bytes for entry in self._entries.values())

    def entries(self, identity: str) -> list[Entry]:
        """Return those of one model, build and kind of cells."""
        with self._mutex:
            return [entry for entry in self._entries.values() if entry.head.identity == identity]

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, tokens: Sequence[int], identity: str, holder: Holder, room: int) -> tuple[Entry | None, int]:
        """Return the file of at most `room` tokens that gives a prompt the most, and how many tokens that is."""
        prompt = packed(tokens)
        best: tuple[Entry | None, int] = (None, 0)
        for entry in self._of(identity, holder.owner):
            limit = holder.n_usable(entry.head.holder)
            n_tokens = entry.head.usable(prompt, limit) if entry.head.n_tokens <= room else 0
            if n_tokens > best[1]:
                best = entry, n_tokens
        return best

    def touch(self, entry: Entry) -> None:
        """Note that a file is used: it is the last to go now."""
        with self._mutex:
            if self._entries.pop(entry.path, None) is None:
                return
            self._entries[entry.path] = entry
        with suppress(OSError):
            os.utime(entry.path)

    def add(self, head: Head, prefix: SwappedPrefix) -> Entry:
        """Write a prefix, after deleting files to make room; then delete those that it begins with. OSError if it
        cannot be written.
        """
        path = self.path / f"{os.urandom(8).hex()}{SUFFIX}"
        self._make_room(sum(part.n_bytes for part in head.parts) + len(head.tokens))
        entry = Entry(path, head, write(path, head, prefix))
        with self._mutex:
            self._entries[path] = entry
        for old in list(self._of(head.identity, head.owner)):
            if old is not entry and holds_all_of(head, old.head):
                self.discard(old)
        self._make_room(0)  # the head has a length, too
        return entry

    def discard(self, entry: Entry) -> None:
        """Delete a file. Idempotent."""
        with self._mutex:
            self._entries.pop(entry.path, None)
        with suppress(OSError):
            entry.path.unlink()

    def forget(self, tokens: bytes, identity: str, owner: str) -> list[Entry]:
        """Forget the prefixes that the packed `tokens` begin with; return their files, which are to be discarded."""
        found = [entry for entry in self._of(identity, owner) if tokens.startswith(entry.head.tokens)]
        with self._mutex:
            for entry in found:
                self._entries.pop(entry.path, None)
        return found

    def _of(self, identity: str, owner: str) -> Iterator[Entry]:
        return (entry for entry in self.entries(identity) if entry.head.owner == owner)

    def _make_room(self, n_bytes: int) -> None:
        with self._mutex:
            entries = list(self._entries.values())
        total, count = sum(entry.n_bytes for entry in entries) + n_bytes, len(entries) + (n_bytes > 0)
        entries.sort(key=lambda entry: entry.head.in_session)
        for entry in largest_first(entries, lambda one: one.head.owner, lambda one: one.n_bytes):
            if total <= self.limit and count <= MAX_FILES:
                return
            self.discard(entry)
            total -= entry.n_bytes
            count -= 1

    def _read_all(self) -> None:
        """Read the heads of all files, and delete files that were being written when a process died."""
        for path in self.path.glob(f".*{SUFFIX}.*.tmp"):
            with suppress(OSError):
                path.unlink()
        found = [(path.stat().st_mtime_ns, path) for path in self.path.glob(f"*{SUFFIX}")]
        for _, path in sorted(found):
            try:
                with open(path, "rb") as file:
                    self._entries[path] = Entry(path, read_head(file), path.stat().st_size)
            except (OSError, DamagedFileError) as error:
                logger.warning("%s is not used: %s", path, error)
                self.n_damaged += 1
                with suppress(OSError):
                    path.unlink()
        self._make_room(0)


def holds_all_of(head: Head, old: Head) -> bool:
    """Return whether a file makes an older one useless: it gives as much to every prompt that continues that one."""
    limit = old.holder.n_usable(head.holder)
    return head.usable(old.tokens + packed([-1]), limit) >= old.n_tokens


def lock_of(folder: Path) -> IO[str]:
    """Return the open file that keeps other processes out; UsageError if one is in."""
    flags = os.O_RDWR | os.O_CREAT
    file = open(os.open(folder / LOCK, flags, 0o600), "w", encoding="utf-8")  # noqa: SIM115 - open while we use it
    if not try_lock(file):
        file.close()
        raise UsageError(f"another server uses {folder}")
    return file
