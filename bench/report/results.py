"""The parts of a run, and the values that are found in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.side_by_side.parts import RUN_FILE, read_parts
from pyllmcancel.bench.percentiles import percentile

OURS = "pyllmcancel"
UNIFIED = "pyllmcancel-unified"
RIVAL = "llama-server"
REFERENCE = "llama-batched-bench"
ORDER = (OURS, UNIFIED, RIVAL, "llama-cpp-python", "xllamacpp", REFERENCE)


@dataclass(frozen=True, slots=True)
class Results:
    """A run that is over, or as much of it as there is.

    Attributes
    ----------
    run
        What its parts have in common: run.json.
    parts
        In the order in which they were measured.
    """

    run: dict[str, Any]
    parts: Sequence[dict[str, Any]]

    @property
    def peers(self) -> list[str]:
        """Everyone who was to be measured, ourselves first."""
        found = {part["peer"] for part in self.parts}
        return [name for name in ORDER if name in found] + sorted(found.difference(ORDER))

    @property
    def commits(self) -> set[str]:
        """Of all parts, marked where the checkout had changes that are in no commit."""
        return {part["commit"][:12] + (" with changes" if part["dirty"] else "") for part in self.parts}

    def figures(self, measurement: str, peer: str) -> list[dict[str, Any]]:
        """What was found, round by round; nothing where it was not measured."""
        found = [part for part in self.parts if part["measurement"] == measurement and part["peer"] == peer]
        figures = [part["figures"] for part in found if "figures" in part]
        return [entry for entry in figures if "not_measured" not in entry]

    def gaps(self) -> list[tuple[str, str, str]]:
        """Measurement, peer and reason of all that was not measured."""
        found = []
        for part in self.parts:
            reason = part.get("not_measured") or part.get("figures", {}).get("not_measured")
            if reason:
                found.append((part["measurement"], part["peer"], str(reason).splitlines()[0]))
        return sorted(set(found))

    def values(self, measurement: str, peer: str, *path: str) -> list[float]:
        """All values at a path of names, of all rounds together; a list counts as its members, None as nothing."""
        found: list[float] = []
        for entry in self.figures(measurement, peer):
            value: Any = entry
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            found += numbers(value)
        return found

    def median(self, measurement: str, peer: str, *path: str) -> float | None:
        return percentile(self.values(measurement, peer, *path), 50)

    def ratio(self, measurement: str, path: Sequence[str], others: str = RIVAL) -> float | None:
        """Our median over another's."""
        mine, theirs = self.median(measurement, OURS, *path), self.median(measurement, others, *path)
        return mine / theirs if mine is not None and theirs else None


def numbers(value: object) -> list[float]:
    if isinstance(value, bool):
        return [float(value)]
    if isinstance(value, int | float):
        return [float(value)]
    if isinstance(value, Iterable) and not isinstance(value, str | dict):
        return [number for member in value for number in numbers(member)]
    return []


def read_results(folder: Path) -> Results:
    """Read a run's folder.

    Raises
    ------
    FileNotFoundError
        If it is none.
    """
    return Results(json.loads((folder / RUN_FILE).read_text()), read_parts(folder))
