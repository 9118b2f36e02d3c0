"""Fetching in a daemon thread, with progress.

A thread that waits for a silent server cannot be woken up. So the downloading thread is a daemon: a server that ends
abandons it in the middle of a file, and the next start resumes the download.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import final

from pyllmcancel.errors import HubError, LoadCancelled
from pyllmcancel.hub.plain_http import host_of
from pyllmcancel.hub.progress import shown

logger = logging.getLogger("pyllmcancel.hub")

TELL_EVERY_SECONDS = 0.1  # how often progress is shown, and asked whether to continue
SILENT_SECONDS = 3.0  # until a line says who is waited for; then after twice that time, and so on


class Fetch(ABC):
    """The work of the daemon thread. Only `sizes`, `source` and `given_up` are for other threads.

    Attributes
    ----------
    source
        The host that is asked now; empty if none is. Written by the daemon thread.
    """

    def __init__(self) -> None:
        self.source = ""
        self._sizes: dict[str, int] = {}
        self._total = 0
        self.future: Future[Path] = Future()
        self.given_up = threading.Event()

    @abstractmethod
    def find(self) -> Path:
        """Return the file to load, downloaded first if need be."""

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
    def sizes(self) -> tuple[int, int]:
        """The number of bytes that are there, and of all; (0, 0) until the latter is known."""
        return sum(self._sizes.copy().values()), self._total

    @final
    @contextmanager
    def asking(self, url: str) -> Iterator[None]:
        """Note that the host of `url` is asked."""
        self.source = host_of(url)
        try:
            yield
        finally:
            self.source = ""

    @final
    def on_size(self, path: str) -> Callable[[int], None]:
        """Return a function that takes the number of bytes of `path`."""

        def on_size(size: int) -> None:
            self._sizes[path] = size

        return on_size


class Silence:
    """Reports a source that sends nothing for a while, as behind a firewall that drops packets."""

    def __init__(self) -> None:
        self._seen = ("", 0)
        self._began = time.monotonic()
        self._next = SILENT_SECONDS

    def look(self, source: str, done: int) -> None:
        """Compare the source, and the number of bytes that are there, with those of the last look."""
        now = time.monotonic()
        if self._seen != (source, done):
            self._seen, self._began, self._next = (source, done), now, SILENT_SECONDS
        elif source and now - self._began >= self._next:
            logger.info("waiting for %s, which has sent nothing for %.0f s", source, now - self._began)
            self._next *= 2


def cannot_be_stored(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"the model cannot be stored: {where}{error.strerror or error}"


def fetched(fetch: Fetch, what: str, progress: Callable[[float], bool]) -> Path:
    """Run `fetch` in a daemon thread, and show its progress.

    Parameters
    ----------
    what
        The name of the model, for people.
    progress
        Called again and again with the progress in [0, 1]. Returning False gives up.

    Raises
    ------
    HubError
        There is no such model, or the download failed.
    LoadCancelled
        The download was given up; the bytes so far are kept, and the next download resumes.
    """
    threading.Thread(target=fetch.run, name="hub download", daemon=True).start()
    silence = Silence()
    with shown(what) as show:
        while not wait([fetch.future], TELL_EVERY_SECONDS).done:
            done, total = fetch.sizes()
            silence.look(fetch.source, done)
            if total:
                show(done, total)
            if not progress(done / total if total else 0.0):
                fetch.given_up.set()
                raise LoadCancelled("the download was given up")
    return fetch.future.result()
