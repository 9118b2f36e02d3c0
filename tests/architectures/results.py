"""The results of sweeps, in a file of JSON lines, so that a long computation can be interrupted and resumed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.architectures.sweep import Report


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is swept: with the rules for its memory, stopped at cuts, at every so many nodes."""

    protected: bool = True
    cuts: bool = False
    stride: int = 1

    def options(self) -> list[str]:
        flags = {"--unprotected": not self.protected, "--cuts": self.cuts}
        return ["--stride", str(self.stride), *(flag for flag, is_set in flags.items() if is_set)]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one model, swept in one way: a report, or why there is none; `seconds` of CPU time."""

    model: str
    way: Way
    seconds: float
    report: Report | None = None
    refused: str | None = None

    @classmethod
    def of(cls, model: str, way: Way, found: dict[str, Any]) -> Result:
        refused, seconds = found.pop("refused", None), found.pop("seconds", math.nan)
        return cls(model, way, seconds, None if refused else Report(**found), refused)


class ResultFile:
    """Results by model and way; each is written as soon as it is there."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: dict[tuple[str, Way], Result] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                fields = json.loads(line)
                report, way = fields.pop("report"), Way(**fields.pop("way"))
                result = Result(way=way, report=None if report is None else Report(**report), **fields)
                self._results[result.model, way] = result

    def get(self, model: str, way: Way) -> Result | None:
        return self._results.get((model, way))

    def add(self, result: Result) -> None:
        self._results[result.model, result.way] = result
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
