"""The measurements of a plan: each is a line of a file, done once, and begun only if the time is enough."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class TimeOverError(Exception):
    """The next measurement would take longer than is left."""


class Ledger:
    """The measurements so far, by their names, and the time that is left for more.

    Parameters
    ----------
    path
        File of JSON lines. A line that was cut is left out, and its measurement is made again.
    seconds
        The time of this run.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._ends = time.monotonic() + seconds
        self.rows: dict[str, Row] = {}
        if path.exists():
            whole = path.read_bytes().rpartition(b"\n")[0]
            self.rows = {row["name"]: row for row in map(json.loads, whole.splitlines())}
            path.write_bytes(whole + b"\n" if whole else b"")

    @property
    def seconds_left(self) -> float:
        return self._ends - time.monotonic()

    def lacks(self, names: Iterable[str]) -> bool:
        return any(name not in self.rows for name in names)

    def wants(self, name: str, seconds: float) -> bool:
        """Return whether a measurement is to be made now.

        Raises
        ------
        TimeOverError
            It is, and it takes about `seconds`, which are not left.
        """
        if name in self.rows:
            return False
        self.reserve(name, seconds)
        return True

    def reserve(self, name: str, seconds: float) -> None:
        """Raise TimeOverError if `seconds`, which `name` takes about, are not left."""
        if self.seconds_left < seconds:
            raise TimeOverError(f"{name} takes about {seconds:.0f} s, and {max(0.0, self.seconds_left):.0f} s are left")

    def add(self, name: str, **figures: Any) -> None:
        self.rows[name] = {"name": name} | figures
        line = json.dumps(self.rows[name]) + "\n"
        with self._path.open("a") as file:
            file.write(line)
        sys.stdout.write(line)
        sys.stdout.flush()
