"""Fetching in a daemon thread, with progress.

A thread that waits for a silent server cannot be woken up. So the downloading thread is a daemon: a server that ends
abandons it in the middle of a file, and the next start resumes the download.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import BinaryIO, final

from pyllmcancel.errors import HubError, LoadCancelled
from pyllmcancel.hub.progress import Progress, in_units

logger = logging.getLogger("pyllmcancel.hub")

LOOK_EVERY_SECONDS = 0.1  # how often progress is shown, and asked whether to continue


class Fetch(ABC):
    """The work of the daemon thread. Others use `done` and `total`, in bytes, 0 until known, and `given_up`."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self.future: Future[Path | None] = Future()
        self.given_up = threading.Event()

    @abstractmethod
    def find(self) -> Path | None:
        """Return the file to load, downloaded first if need be; None for a projector that does not exist."""

    @final
    def run(self) -> None:
        try:
            self.future.set_result(self.find())
        except OSError as error:
            self.future.set_exception(HubError(cannot_be_stored(error)))
        except BaseException as error:
            # Any exception: the other thread waits for the future.
            self.future.set_exception(error)

    @final
    def count(self, n_bytes: int) -> None:
        """Note that more bytes are there; LoadCancelled if the download was given up."""
        self.done += n_bytes
        if self.given_up.is_set():
            raise LoadCancelled("the download was given up")

    @final
    def complete(self, path: Path, name: str, size: int, digest: str, download: Callable[[BinaryIO], None]) -> None:
        """Have a file downloaded to `path`, from where an earlier download was interrupted; `name` is for people.

        `download` appends what is missing to the file that it is given, whose name has ``.incomplete`` at its end until
        it is whole. No content of another digest is kept.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.incomplete")
        with partial.open("ab") as out:
            if out.tell() > size:
                out.seek(0)
                out.truncate()
            elif out.tell():
                logger.info("resuming %s, of which %s are there", name, in_units(out.tell()))
            check_room(path.parent, name, size - out.tell())
            self.count(out.tell())
            download(out)
        found = digest_of(partial, digest)
        if found != digest:
            partial.unlink()
            raise HubError(
                f"{name} has a wrong digest: it is {found} and should be {digest}. The file was not kept. Try"
                " again, or report this to its source"
            )
        partial.replace(path)


def digest_of(path: Path, like: str) -> str:
    """Return the SHA-256 of a file; its Git digest if `like` is one: the SHA-1 of a header and the content."""
    header = f"blob {path.stat().st_size}\0".encode()
    begun = hashlib.sha1(header, usedforsecurity=False) if len(like) == 40 else hashlib.sha256()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: begun).hexdigest()


def check_room(folder: Path, name: str, missing: int) -> None:
    """Raise OSError if the disk has less room than the `missing` bytes of the file with this name."""
    free = shutil.disk_usage(folder).free
    if missing > free:
        text = f"{name} needs {in_units(missing)} more, but {folder} has {in_units(free)} left"
        raise OSError(errno.ENOSPC, text)


def cannot_be_stored(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"the model cannot be stored: {where}{error.strerror or error}"


def fetched(fetch: Fetch, what: str, progress: Callable[[float], bool]) -> Path | None:
    """Run `fetch` of `what` in a daemon thread, and show its progress; HubError if the download fails.

    `progress` is called again and again with the progress in [0, 1]. If it returns False the download is given up, with
    LoadCancelled: the bytes so far are kept, and the next download resumes.
    """
    threading.Thread(target=fetch.run, name="hub download", daemon=True).start()
    lines = Progress(what)
    while not wait([fetch.future], LOOK_EVERY_SECONDS).done:
        done, total = fetch.done, fetch.total
        if total:
            lines.show(done, total)
        if not progress(done / total if total else 0.0):
            fetch.given_up.set()
            raise LoadCancelled("the download was given up")
    return fetch.future.result()
