"""The progress of a download: a line in the log now and then."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("pyllmcancel.hub")

LINE_EVERY_SECONDS = 5.0


class Progress:
    """Logs a line every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._at = time.monotonic()
        self._size: int | None = None

    def show(self, done: int, total: int) -> None:
        """Take the number of bytes that are there, and of all."""
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
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
