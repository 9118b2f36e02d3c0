"""The download of one file into a cache. It resumes where it was interrupted, and keeps no content with a wrong
digest.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from pyllmcancel.errors import HubError, HubUnreachable, LoadCancelled
from pyllmcancel.hub.progress import in_units

if TYPE_CHECKING:
    from pyllmcancel.hub.client import HubFile

logger = logging.getLogger("pyllmcancel.hub")

RETRIES = 5  # in a row, without progress between them
PAGE_RETRIES = 2  # of a page that only names the file
PAUSE_SECONDS = 1.0
PIECE = 1 << 20
RANGE = re.compile(r"bytes (\d+)-")
T = TypeVar("T")


class Answer(Protocol):
    """An HTTP answer, whose content has not been read."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def iter_raw(self) -> Iterator[bytes]: ...


class Download:
    """One download. Used once, by one thread, while no other process downloads the same file.

    Parameters
    ----------
    content
        Returns the answer with the file's content from a byte on: 206, or 200 with all of it, or 416. Raises
        HubUnreachable where another attempt may succeed.
    file
        The file's name, size and digest.
    path
        The path that the whole and checked file gets. ``.incomplete`` is appended while it is on its way.
    on_size
        Called with the number of bytes so far, whenever it changes.
    given_up
        Set by any thread: the download ends with LoadCancelled, and the bytes so far are kept.
    """

    def __init__(
        self, content: Callable[[int], AbstractContextManager[Answer]], file: HubFile, path: Path,
        *, on_size: Callable[[int], None], given_up: threading.Event
    ) -> None:  # fmt: skip
        self._content = content
        self._file = file
        self._on_size = on_size
        self._given_up = given_up
        self._path = path
        self._size = 0  # bytes that are there
        self._digest = _digest_of(file)

    def run(self) -> None:
        """Download the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f"{self._path.name}.incomplete")
        partial.touch()
        with partial.open("r+b", buffering=0) as out:
            self._take_up(out)
            check_room(partial.parent, self._file.path, self._file.size - self._size)
            self._fill(out)
            os.fsync(out.fileno())
        if self._digest.hexdigest() != self._file.etag:
            partial.unlink()
            raise HubError(
                f"{self._file.path} has a wrong digest: it is {self._digest.hexdigest()} and should"
                f" be {self._file.etag}. The file was not kept. Try again, or report this to its source"
            )
        partial.replace(self._path)

    def _take_up(self, out: BinaryIO) -> None:
        """Read the part that an earlier download left."""
        while piece := out.read(PIECE):
            self._took(piece)
        if self._size > self._file.size:
            self._begin_anew(out)
        if self._size:
            logger.info("resuming %s, of which %s are there", self._file.path, in_units(self._size))

    def _fill(self, out: BinaryIO) -> None:
        failures = 0
        while self._size < self._file.size:
            before = self._size
            try:
                with self._content(self._size) as response:
                    self._copy(response, out)
                    if self._size < self._file.size:
                        raise HubUnreachable(f"the answer ended in the middle of {self._file.path}")
            except HubUnreachable as error:
                failures = 1 if self._size > before else failures + 1
                if failures > RETRIES:
                    raise HubUnreachable(f"{error}, {failures} times; the next start resumes the download") from error
                pause(error, failures, RETRIES, self._given_up)

    def _copy(self, response: Answer, out: BinaryIO) -> None:
        if self._size and not self._goes_on(response):
            self._begin_anew(out)
            if response.status_code != 200:
                return  # the next attempt asks for the whole file
        for piece in response.iter_raw():
            if self._given_up.is_set():
                raise LoadCancelled("the download was given up")
            if self._size + len(piece) > self._file.size:
                self._begin_anew(out)
                raise HubError(f"{self._file.path} is longer than the {self._file.size:,} bytes that it should have")
            _write(out, piece)
            self._took(piece)

    def _goes_on(self, response: Answer) -> bool:
        """Return whether the answer begins where the file ends."""
        found = RANGE.match(response.headers.get("Content-Range", ""))
        return response.status_code == 206 and found is not None and int(found[1]) == self._size

    def _took(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._size += len(piece)
        self._on_size(self._size)

    def _begin_anew(self, out: BinaryIO) -> None:
        out.seek(0)
        out.truncate()
        self._digest, self._size = _digest_of(self._file), 0
        self._on_size(0)


def repeated(ask: Callable[[], T], given_up: threading.Event) -> T:
    """Return the result of `ask`, which is called again if it raises HubUnreachable."""
    for failures in range(1, PAGE_RETRIES + 1):
        try:
            return ask()
        except HubUnreachable as error:
            pause(error, failures, PAGE_RETRIES, given_up)
    return ask()


def pause(error: HubUnreachable, failures: int, retries: int, given_up: threading.Event) -> None:
    """Report a failure, and wait before the next attempt; LoadCancelled if the download is given up."""
    logger.warning("%s: trying again (%d of %d)", error, failures, retries)
    if given_up.wait(PAUSE_SECONDS):
        raise LoadCancelled("the download was given up") from None


def check_room(folder: Path, name: str, missing: int) -> None:
    """Raise OSError if the disk has less room than the `missing` bytes of the file with this name."""
    free = shutil.disk_usage(folder).free
    if missing > free:
        text = f"{name} needs {in_units(missing)} more, but {folder} has {in_units(free)} left"
        raise OSError(errno.ENOSPC, text)


def _digest_of(file: HubFile) -> hashlib._Hash:
    """Return the hash for the etag: SHA-256 of the content, or Git's SHA-1 of a header and the content."""
    if len(file.etag) == 64:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def _write(out: BinaryIO, piece: bytes) -> None:
    """Write everything: an unbuffered file may take less at once."""
    view = memoryview(piece)
    while view:
        view = view[out.write(view) :]
