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
BAR = 20  # columns


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
    bar = Bar(what)
    handlers = [handler for handler in logging.getLogger().handlers if getattr(handler, "stream", None) is sys.stderr]
    before = [handler.formatter for handler in handlers]
    for handler, formatter in zip(handlers, before, strict=True):
        handler.setFormatter(_AboveBar(formatter or logging.Formatter(), bar))
    try:
        yield bar
    finally:
        for handler, formatter in zip(handlers, before, strict=True):
            handler.setFormatter(formatter)
        sys.stderr.write(bar.cleared())


class Bar:
    """A line that is drawn anew in its place."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._width = 0
        self._began: tuple[float, int] | None = None  # when, and how many bytes an earlier download had left

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        began, left = self._began = self._began or (now, done)
        rate = max(done - left, 0) / max(now - began, 0.1)
        share = done / total if total else 0.0
        counts = f"{in_units(done)} of {in_units(total)}, {in_units(rate)}/s"
        rest = f", {in_time((total - done) / rate)} left" if rate and done < total else ""
        line = f"{self._what}: {share * 100:3.0f} % [{'#' * round(share * BAR):<{BAR}}] {counts}{rest}"
        # a terminal that reports no size, as a container's may, has 80 columns
        line = line[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(self.cleared() + line)
        sys.stderr.flush()
        self._width = len(line)

    def cleared(self) -> str:
        """Return what removes the bar from the terminal."""
        return f"\r{' ' * self._width}\r"


class _AboveBar(logging.Formatter):
    """Formats a line of the log so that it replaces the bar, which is then drawn below it."""

    def __init__(self, formatter: logging.Formatter, bar: Bar) -> None:
        super().__init__()
        self._formatter = formatter
        self._bar = bar

    def format(self, record: logging.LogRecord) -> str:
        return self._bar.cleared() + self._formatter.format(record)


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
        elif seconds >= LINE_EVERY_SECONDS and done < total:
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
