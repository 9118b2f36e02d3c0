"""The results of a microbenchmark: rows of named values, and their way into JSON and onto a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.side_by_side.conditions import describe_code, now
from bench.tables import aligned
from pyllmcancel.bench.report import describe_machine

Row = dict[str, Any]  # of str, int, float and bool


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one benchmark, all with the same keys; `unit` is that of every float unless its key names another."""

    name: str
    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)


def summary(values: Sequence[float], digits: int = 3) -> Row:
    """Median, quartiles and extremes of a sample, and its size."""
    named = {"median": 50, "q1": 25, "q3": 75, "min": 0, "max": 100}
    found = np.percentile(values, list(named.values()))
    return {"n": len(values)} | {name: round(float(value), digits) for name, value in zip(named, found, strict=True)}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that at least `percent` % of them do not exceed."""
    return float(np.percentile(values, percent, method="inverted_cdf"))


def write_json(table: Table, path: Path, conditions: Row) -> None:
    """Write one table with the machine it was measured on and the conditions it was measured under."""
    document = {
        "name": table.name,
        "title": table.title,
        "unit": table.unit,
        "machine": describe_machine(),
        "code": describe_code(),
        "date": now(),
        "conditions": conditions,
        "rows": table.rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def as_text(table: Table) -> str:
    """The table in columns, for a terminal."""
    keys = list(table.rows[0]) if table.rows else []
    lines = aligned([keys, *([_cell(row[key]) for key in keys] for row in table.rows)])
    return "\n".join([f"{table.title} ({table.unit})", *lines])


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
