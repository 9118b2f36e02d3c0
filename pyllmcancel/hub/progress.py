"""The progress of a download: a bar on a terminal, else a line in the log now and then."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

logger = logging.getLogger("pyllmcancel.hub")

LINE_EVERY_SECONDS = 5.0


class Show(Protocol):
    """Takes the number of bytes that are there, and of all."""

    def __call__(self, done: int, total: int) -> None: ...


@contextmanager
def shown(what: str) -> Iterator[Show]:
    """Show the progress of `what` in a form that fits the log's destination."""
    if sys.stderr.isatty():
        with _bar(what) as show:
            yield show
    else:
        yield Lines(what)


@contextmanager
def _bar(what: str) -> Iterator[Show]:
    from tqdm import tqdm  # type: ignore[import-untyped]
    from tqdm.contrib.logging import logging_redirect_tqdm  # type: ignore[import-untyped]

    # tqdm shows nothing on a terminal that reports no size, as a container's may
    columns, rows = shutil.get_terminal_size()
    size = {"ncols": columns, "nrows": rows}
    with logging_redirect_tqdm(), tqdm(desc=what, unit="B", unit_scale=True, total=0, leave=False, **size) as bar:

        def show(done: int, total: int) -> None:
            if bar.total != total:  # bytes from an earlier download must not count as speed
                bar.reset(total)
                bar.initial = bar.n = done
            bar.n = done
            bar.refresh()

        yield show


class Lines:
    """Logs a line every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._at = time.monotonic()
        self._size: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        seconds = now - self._at
        if self._size is None:
            self._size = done
        elif seconds >= LINE_EVERY_SECONDS:
            rate = max(done - self._size, 0) / seconds
            left = f", {in_time((total - done) / rate)} left" if rate else ""
            share = done / total if total else 0.0
            logger.info(
                "downloading %s: %s of %s (%.0f %%), %s/s%s",
                *(self._what, in_units(done), in_units(total), share * 100, in_units(rate), left),
            )
            self._at, self._size = now, done


def in_units(size: float) -> str:
    """Return bytes in readable form: 4.7 GB."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def in_time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )
