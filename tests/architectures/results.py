"""What sweeps found, kept in a file of JSON lines, so that a long computation can be broken off and gone on with."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.architectures.sweep import Report


@dataclass(frozen=True, slots=True)
class Result:
    """Of one model, swept in one way: a report, or why there is none; `seconds` of CPU time."""

    model: str
    protected: bool
    stride: int
    seconds: float
    report: Report | None = None
    refused: str | None = None

    @classmethod
    def of(cls, model: str, found: dict[str, Any], *, protected: bool, stride: int) -> Result:
        """From what a sweep's process printed."""
        refused, seconds = found.pop("refused", None), found.pop("seconds", math.nan)
        return cls(model, protected, stride, seconds, None if refused else Report(**found), refused)


class ResultFile:
    """Results by model and way; each is written as soon as it is there."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: dict[tuple[str, bool, int], Result] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                fields = json.loads(line)
                report = fields.pop("report")
                self._remember(Result(report=None if report is None else Report(**report), **fields))

    def _remember(self, result: Result) -> None:
        self._results[result.model, result.protected, result.stride] = result

    def get(self, model: str, *, protected: bool, stride: int) -> Result | None:
        return self._results.get((model, protected, stride))

    def add(self, result: Result) -> None:
        self._remember(result)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
