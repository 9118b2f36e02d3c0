"""What a microbenchmark returns: rows of named values, and their way into JSON and onto a terminal."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.side_by_side.conditions import describe_code, describe_machine, now

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
    quartiles = [values[0]] * 3 if len(values) < 2 else statistics.quantiles(values, n=4, method="inclusive")
    named = {"median": quartiles[1], "q1": quartiles[0], "q3": quartiles[2], "min": min(values), "max": max(values)}
    return {"n": len(values)} | {name: round(value, digits) for name, value in named.items()}


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of `values` that at least `percent` % of them do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


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
    cells = [keys, *([_cell(row[key]) for key in keys] for row in table.rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(keys))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([f"{table.title} ({table.unit})", *lines])


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def ratios(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """The median of ours over the median of theirs."""
    return round(statistics.median(ours) / statistics.median(theirs), 3)
