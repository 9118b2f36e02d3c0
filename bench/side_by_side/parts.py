"""Parts of a run: which there are, in which order, and the files that they are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.side_by_side.measurement import Measurement

FOLDER = "parts"
RUN_FILE = "run.json"
# The facts that the parts of one run must share to be comparable.
COMMON = ("model", "model_mib", "threads", "effort", "machine")


class OtherRunError(Exception):
    """The folder has parts that were measured under other conditions."""


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement of one peer in one round."""

    measurement: Measurement
    peer: str
    round: int

    @property
    def name(self) -> str:
        return f"{self.measurement.name}.{self.peer}.{self.round}"

    def __str__(self) -> str:
        return f"{self.measurement.name}: {self.peer}, round {self.round} of {self.measurement.rounds}"


def schedule(measurements: Sequence[Measurement], peers: Sequence[str], most_rounds: int = 1000) -> Iterator[Part]:
    """Measurement by measurement, round by round; in each round it is another peer that comes first."""
    for measurement in measurements:
        names = [*peers, *measurement.others]
        for number in range(1, min(measurement.rounds, most_rounds) + 1):
            first = (number - 1) % len(names)
            for name in names[first:] + names[:first]:
                yield Part(measurement, name, number)


class PartStore:
    """The files of a run's parts, one JSON object each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def path(self, part: Part) -> Path:
        return self.folder / f"{part.name}.json"

    def has(self, part: Part) -> bool:
        """Return whether the part was measured; a failed one is tried again."""
        path = self.path(part)
        return path.exists() and "figures" in json.loads(path.read_text())

    def keep(self, part: Part, content: dict[str, Any]) -> None:
        """Write a part's file, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.path(part).with_suffix(".partial")
        named = {"measurement": part.measurement.name, "peer": part.peer, "round": part.round}
        partial.write_text(json.dumps(named | content, indent=1) + "\n")
        partial.replace(self.path(part))


def describe_run(folder: Path, run: dict[str, Any]) -> None:
    """Write the run's description, or add the command to that of the run which is resumed.

    Raises
    ------
    OtherRunError
        If the parts that are there are of another model, machine, number of threads or effort.
    """
    path = folder / RUN_FILE
    if path.exists():
        before = json.loads(path.read_text())
        changed = [name for name in COMMON if before[name] != run[name]]
        if changed:
            raise OtherRunError(f"{folder} has a run with another {' and '.join(changed)}: give another folder")
        new = [command for command in run["commands"] if command not in before["commands"]]
        run = run | {"commands": before["commands"] + new, "peers": before["peers"] | run["peers"]}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1) + "\n")


def read_parts(folder: Path) -> list[dict[str, Any]]:
    """All parts of a run, in the order in which they were measured."""
    found = [json.loads(path.read_text()) for path in sorted((folder / FOLDER).glob("*.json"))]
    return sorted(found, key=lambda part: str(part["began"]))
