"""One file's way into the cache: it goes on where it was cut, and what its digest does not fit is not kept."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pyllmcancel.errors import HubError, HubUnreachable, LoadCancelled
from pyllmcancel.hub.progress import in_units

if TYPE_CHECKING:
    import httpx2

    from pyllmcancel.hub.cache import Repository
    from pyllmcancel.hub.client import Hub, HubFile

logger = logging.getLogger("pyllmcancel.hub")

RETRIES = 5  # in a row, without a byte between them
PAUSE_SECONDS = 1.0
PIECE = 1 << 20
RANGE = re.compile(r"bytes (\d+)-")


class Download:
    """Used once, by one thread.

    Parameters
    ----------
    on_size
        Told how many bytes are there, whenever that changes.
    given_up
        Set by any thread: the download ends with LoadCancelled, and what came stays.
    """

    def __init__(
        self, hub: Hub, repository: Repository, commit: str, file: HubFile,
        *, on_size: Callable[[int], None], given_up: threading.Event
    ) -> None:  # fmt: skip
        self._hub = hub
        self._repository = repository
        self._commit = commit
        self._file = file
        self._on_size = on_size
        self._given_up = given_up
        self._blob = repository.blob(file.etag)
        self._size = 0  # of what is there
        self._digest = _digest_of(file)

    def run(self) -> Path:
        """Have the file in the cache; returns its path there."""
        self._blob.parent.mkdir(parents=True, exist_ok=True)
        with self._repository.locked(self._file.etag):
            if not self._blob.exists():
                self._fetch()
        self._on_size(self._file.size)
        return self._repository.install(self._commit, self._file.path, self._file.etag)

    def _fetch(self) -> None:
        partial = self._blob.with_name(f"{self._blob.name}.incomplete")
        partial.touch()
        with partial.open("r+b", buffering=0) as out:
            self._take_up(out)
            self._check_room(partial.parent)
            self._fill(out)
            os.fsync(out.fileno())
        if self._digest.hexdigest() != self._file.etag:
            partial.unlink()
            raise HubError(
                f"{self._file.path} is not what the hub says it is: its digest is {self._digest.hexdigest()} and should"
                f" be {self._file.etag}; it was not kept. Try again, or tell the hub"
            )
        partial.replace(self._blob)

    def _take_up(self, out: BinaryIO) -> None:
        """Read what an earlier download left."""
        while piece := out.read(PIECE):
            self._took(piece)
        if self._size > self._file.size:
            self._begin_anew(out)
        if self._size:
            logger.info("going on with %s, of which %s are there", self._file.path, in_units(self._size))

    def _check_room(self, folder: Path) -> None:
        missing, free = self._file.size - self._size, shutil.disk_usage(folder).free
        if missing > free:
            raise HubError(f"{self._file.path} needs {in_units(missing)} more, but {folder} has {in_units(free)} left")

    def _fill(self, out: BinaryIO) -> None:
        failures = 0
        while self._size < self._file.size:
            before = self._size
            try:
                with self._hub.content(self._repository.repo, self._commit, self._file, self._size) as response:
                    self._copy(response, out)
                    if self._size < self._file.size:
                        raise HubUnreachable(f"{self._hub.endpoint} ended in the middle of {self._file.path}")
            except HubUnreachable as error:
                failures = 1 if self._size > before else failures + 1
                if failures > RETRIES:
                    raise HubUnreachable(
                        f"{error}, {failures} times; what came is kept: the next start goes on"
                    ) from error
                logger.warning("%s: trying again (%d of %d)", error, failures, RETRIES)
                if self._given_up.wait(PAUSE_SECONDS):
                    raise LoadCancelled("the download was given up") from None

    def _copy(self, response: httpx2.Response, out: BinaryIO) -> None:
        if self._size and not self._goes_on(response):
            self._begin_anew(out)
            if response.status_code != 200:
                return  # the next attempt asks for all
        for piece in response.iter_raw():
            if self._given_up.is_set():
                raise LoadCancelled("the download was given up")
            if self._size + len(piece) > self._file.size:
                self._begin_anew(out)
                raise HubError(f"{self._file.path} is longer than the hub says, which is {self._file.size:,} bytes")
            _write(out, piece)
            self._took(piece)

    def _goes_on(self, response: httpx2.Response) -> bool:
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


def _digest_of(file: HubFile) -> hashlib._Hash:
    """Return the hash that the etag is of: SHA-256 of the content, or Git's SHA-1 of a header and the content."""
    if len(file.etag) == 64:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)


def _write(out: BinaryIO, piece: bytes) -> None:
    """All of it: an unbuffered file may take less at once."""
    view = memoryview(piece)
    while view:
        view = view[out.write(view) :]
