"""Figures as Markdown tables: a row a figure, a column a peer, and how many times better we are than llama-server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.results import OURS, RIVAL, Results
from pyllmcancel.bench.percentiles import percentile

NOTHING = "-"
Take = Callable[[Results, str], float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes
    ----------
    take
        The figure of a peer; None if it was not measured.
    show
        How it is written.
    better
        Which direction is better; None: there is none, and no ratio is shown.
    """

    label: str
    take: Take
    show: Callable[[float], str]
    better: Literal["less", "more"] | None = None


def at(measurement: str, *path: str, percent: float = 50.0) -> Take:
    """A percentile, by default the median, of all values of all rounds."""
    return lambda results, peer: percentile(results.values(measurement, peer, *path), percent)


def count(measurement: str, *path: str) -> Take:
    """How many values there are."""
    return lambda results, peer: float(len(found)) if (found := results.values(measurement, peer, *path)) else None


def total(measurement: str, *path: str) -> Take:
    """The sum of all values."""
    return lambda results, peer: sum(found) if (found := results.values(measurement, peer, *path)) else None


def share(measurement: str, part: str, whole: str) -> Take:
    """One sum over another."""

    def take(results: Results, peer: str) -> float | None:
        all_of_it = sum(results.values(measurement, peer, whole))
        return sum(results.values(measurement, peer, part)) / all_of_it if all_of_it else None

    return take


def markdown(results: Results, rows: Sequence[Row]) -> list[str]:
    """The table's lines. A peer of whom nothing is known has no column, such a figure no row."""
    found = {row: {peer: row.take(results, peer) for peer in results.peers} for row in rows}
    peers = [peer for peer in results.peers if any(found[row][peer] is not None for row in rows)]
    if not peers:
        return ["Not measured."]
    compared = OURS in peers and RIVAL in peers
    head = ["", *peers, *([f"better than {RIVAL}"] if compared else [])]
    lines = [line(head), line(["---", *["---:"] * (len(head) - 1)])]
    for row in rows:
        values = [found[row][peer] for peer in peers]
        if all(value is None for value in values):
            continue
        cells = [NOTHING if value is None else row.show(value) for value in values]
        times = [factor(found[row].get(OURS), found[row].get(RIVAL), row.better)] if compared else []
        lines.append(line([row.label, *cells, *times]))
    return lines


def factor(ours: float | None, theirs: float | None, better: Literal["less", "more"] | None) -> str:
    """How many times better we are."""
    if better is None or ours is None or theirs is None:
        return ""
    above, below = (theirs, ours) if better == "less" else (ours, theirs)
    if below <= 0:
        return ""
    times = above / below
    return f"{times:,.0f} times" if times >= 20 else f"{times:.2f} times"


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def seconds(value: float) -> str:
    """With three digits, in the unit that suits."""
    if value < 1.0:
        return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def rate(value: float) -> str:
    return f"{value:.1f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def mib(value: float) -> str:
    return f"{value:,.0f} MiB"


def per_cent(value: float) -> str:
    return f"{100 * value:.2f} %"


def times(value: float) -> str:
    return f"{value:.2f}"
