"""The folder of the processes' sockets. A server that was killed leaves its own behind; the next one removes it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pyllmcancel.system import try_lock

PREFIX = "pyllmcancel-models-"
LOCK = "lock"  # a file that is locked for as long as its server lives


@contextmanager
def socket_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that nobody else may enter; it is removed in the end, and so are those of servers that were killed.

    `parent` is the folder of temporary files if it is None.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_abandoned(parent)
    folder, lock = claimed(parent)
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def claimed(parent: Path) -> tuple[Path, IO[str]]:
    """Return a new folder, and its file, which is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = (folder / LOCK).open("w")
        # Another server may have taken it for an abandoned one before it was locked.
        if try_lock(lock) and (folder / LOCK).exists():
            return folder, lock
        lock.close()


def remove_abandoned(parent: Path) -> None:
    """Remove the folders whose servers have ended."""
    for folder in parent.glob(f"{PREFIX}*"):
        # An error: it is another user's, was removed meanwhile, or is not locked yet.
        with suppress(OSError), open(folder / LOCK, opener=opened_at_once, encoding="utf-8") as lock:
            if stat.S_ISREG(os.fstat(lock.fileno()).st_mode) and try_lock(lock):
                shutil.rmtree(folder, ignore_errors=True)  # does not follow a link


def opened_at_once(path: str, flags: int) -> int:
    """Open a file in a folder that anybody may write to: neither through a link, nor by waiting for a pipe's writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
