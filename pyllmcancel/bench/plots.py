"""Plots, with matplotlib: the distribution of cancel latencies, and goodput.

The functions take plain numbers, named by what is compared (servers, percentages), so that a report over several
servers draws with the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter

from pyllmcancel.bench.percentiles import percentile

# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LEGEND_CHARACTERS = 90  # in a row
SHORTEST_MS = 0.01  # nothing at all, on a logarithmic axis
FORMATS = ("png", "svg")


def new_figure(title: str, width: float = 8.0, height: float = 4.5) -> tuple[Figure, Axes]:
    """An empty plot in the house's style, with room for a last tick's label that is wider than its tick."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06))
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write as PNG and SVG; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def cancel_latency_cdf(latencies: Mapping[str, Sequence[float]], *, title: str = "Cancel latency") -> Figure:
    """How many cancels had taken effect after which time, a line for each name.

    Parameters
    ----------
    latencies
        Seconds from the client's hang-up until its computation had stopped.
    """
    figure, axes = new_figure(title)
    known = {name: sorted(values) for name, values in latencies.items() if values}
    for colour, (name, values) in zip(cycle(COLOURS), known.items(), strict=False):
        milliseconds = [max(value * 1e3, SHORTEST_MS) for value in values]
        shares = [(rank + 1) / len(values) for rank in range(len(values))]
        axes.step([milliseconds[0], *milliseconds], [0.0, *shares], where="post", color=colour, linewidth=2)
        label = f"{name} (n = {len(values)}; p50 {_ms(values, 50)}, p99 {_ms(values, 99)})"
        axes.plot([], [], color=colour, linewidth=2, label=label)
    axes.set_xscale("log")
    # Whole powers of ten: within one of them a logarithmic axis has no readable labels.
    every = [max(value * 1e3, SHORTEST_MS) for values in known.values() for value in values] or [1.0]
    axes.set_xlim(10 ** math.floor(math.log10(min(every))), 10 ** (math.floor(math.log10(max(every))) + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds from the client's hang-up until its computation had stopped")
    axes.set_ylabel("share of cancels")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    axes.set_ylim(0.0, 1.03)
    _legend_below(figure, axes)
    return figure


def goodput(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str = "Goodput against cancellation rate"
) -> Figure:
    """Tokens of complete answers a second, over the percentage of clients that hang up; a line for each name."""
    figure, axes = new_figure(title)
    for colour, (name, points) in zip(cycle(COLOURS), curves.items(), strict=False):
        ordered = sorted(points)
        axes.plot(*zip(*ordered, strict=True), color=colour, marker="o", linewidth=2, label=name)
    axes.set_xlabel("clients that hang up, %")
    axes.set_ylabel("tokens of complete answers per second")
    axes.set_ylim(bottom=0.0)
    axes.set_xticks(sorted({percent for points in curves.values() for percent, _ in points}))
    _legend_below(figure, axes)
    return figure


def _ms(values: Sequence[float], percent: float) -> str:
    seconds = percentile(values, percent) or 0.0
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Under the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        widest = max(len(label) for label in labels)
        columns = min(len(handles), max(1, LEGEND_CHARACTERS // (widest + 6)))
        rows = math.ceil(len(handles) / columns)
        figure.set_figheight(figure.get_figheight() + 0.25 * (rows - 1))
        figure.legend(loc="outside lower center", frameon=False, ncols=columns)
