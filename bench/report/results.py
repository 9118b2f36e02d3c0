"""The parts of a run, the values that are found in them, and how values are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.side_by_side.parts import RUN_FILE, read_parts
from pyllmcancel.bench.percentiles import percentile

OURS = "pyllmcancel"
RIVAL = "llama-server"
BEFORE = "before"
REFERENCE = "llama-batched-bench"
ORDER = (OURS, BEFORE, "pyllmcancel-unified", RIVAL, "llama-cpp-python", REFERENCE)


@dataclass(frozen=True, slots=True)
class Results:
    """A run that is over, or as much of it as there is."""

    run: dict[str, Any]  # common to its parts: run.json
    parts: Sequence[dict[str, Any]]  # in the order in which they were measured

    @property
    def peers(self) -> list[str]:
        """Every peer that was to be measured, ours first."""
        found = {part["peer"] for part in self.parts}
        return [name for name in ORDER if name in found] + sorted(found.difference(ORDER))

    @property
    def commits(self) -> set[str]:
        """The commits of all parts, marked if the checkout had uncommitted changes."""
        return {part["commit"][:12] + (" with changes" if part["dirty"] else "") for part in self.parts}

    def figures(self, measurement: str, peer: str) -> list[dict[str, Any]]:
        """Return the figures, round by round; nothing if there was no measurement."""
        found = [part for part in self.parts if part["measurement"] == measurement and part["peer"] == peer]
        figures = [part["figures"] for part in found if "figures" in part]
        return [entry for entry in figures if "not_measured" not in entry]

    def gaps(self) -> list[tuple[str, str, str]]:
        """Measurement, peer and reason of all that was not measured."""
        found = set()
        for part in self.parts:
            reason = part.get("not_measured") or part.get("figures", {}).get("not_measured")
            if reason:
                found.add((part["measurement"], part["peer"], str(reason).splitlines()[0]))
        return sorted(found)

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

    def share(self, measurement: str, peer: str, part: str, whole: str) -> float | None:
        """The sum of one figure over that of another."""
        all_of_it = sum(self.values(measurement, peer, whole))
        return sum(self.values(measurement, peer, part)) / all_of_it if all_of_it else None


def numbers(value: object) -> list[float]:
    if isinstance(value, int | float):
        return [float(value)]
    if isinstance(value, Iterable) and not isinstance(value, str | dict):
        return [number for member in value for number in numbers(member)]
    return []


def read_results(folder: Path) -> Results:
    """Read a run's folder; FileNotFoundError if it is none."""
    return Results(json.loads((folder / RUN_FILE).read_text()), read_parts(folder))


def seconds(value: float) -> str:
    """With three digits, in the unit that suits."""
    if value < 1.0:
        return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


rate = "{:.1f}".format
times = "{:.2f}".format
whole = "{:,.0f}".format
mib = "{:,.0f} MiB".format


def per_cent(value: float) -> str:
    return f"{100 * value:.2f} %"
