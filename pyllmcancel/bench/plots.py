"""Pictures of what was found, with matplotlib: the latency of cancels, who held a place when, and goodput.

The functions take plain numbers, named by whatever is compared (servers, percentages), so that a report over several
servers draws with the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from pyllmcancel.bench.answer import ErrorKind
from pyllmcancel.bench.client import Exchange, Outcome
from pyllmcancel.bench.percentiles import percentile
from pyllmcancel.bench.server_truth import CpuSample

# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#666666"
WAITING, ANSWERING = "#9ecae9", "#0072B2"
CUT, FAILED = "#D55E00", "#a50026"
BAR = 0.7  # height of a request in its row
MARKS: dict[str, dict[str, Any]] = {
    "client hung up": {"color": CUT, "marker": "|", "ms": 9, "mew": 2.5},
    "cancelled for a newer one": {"color": GREY, "marker": "D", "ms": 5},
    "failed": {"color": FAILED, "marker": "x", "ms": 7, "mew": 2},
}
MOST_POINTS = 200
LEGEND_CHARACTERS = 90  # in a row
SHORTEST_MS = 0.01  # nothing at all, on a logarithmic axis
FORMATS = ("png", "svg")


def new_figure(title: str, width: float = 8.0, height: float = 4.5) -> tuple[Figure, Axes]:
    """An empty plot in the house's style."""
    figure = Figure(figsize=(width, height), layout=roomy())
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    return figure, plain_axes(axes)


def roomy() -> ConstrainedLayoutEngine:
    """Room for a last tick's label that is wider than its tick."""
    return ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06)


def plain_axes(axes: Axes) -> Axes:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


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


def timeline(
    exchanges: Sequence[Exchange], began_at: float, *, cpu: Sequence[CpuSample] = (), title: str = "Requests over time"
) -> Figure:
    """Who waited and who was answered when, a bar for each request; below it what the server's process used.

    A request that begins takes the lowest row that is free, so the number of rows is how many were in flight.
    """
    lanes = pack(exchanges)
    rows = max(lanes, default=0) + 1
    height = 1.8 + 0.22 * max(4, rows) + (1.4 if cpu else 0.0)
    figure = Figure(figsize=(10.0, min(height, 12.0)), layout=roomy())
    grid = figure.add_gridspec(2 if cpu else 1, 1, height_ratios=[max(2.0, 0.22 * rows), 1.2] if cpu else None)
    axes = plain_axes(figure.add_subplot(grid[0]))
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    handles = _draw_requests(axes, exchanges, lanes, began_at)
    axes.set_ylabel("requests in flight")
    axes.set_xlim(left=0.0)
    axes.set_ylim(-0.7, rows - 0.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda lane, _: f"{lane + 1:.0f}"))
    axes.grid(False, axis="y")
    if cpu:
        _draw_cpu(plain_axes(figure.add_subplot(grid[1], sharex=axes)), cpu, began_at)
        axes.tick_params(labelbottom=False)
    figure.axes[-1].set_xlabel("seconds")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def pack(exchanges: Sequence[Exchange]) -> list[int]:
    """The lowest row that is free at each exchange's beginning; they come in that order."""
    free_at: list[float] = []
    lanes = []
    for exchange in exchanges:
        lane = next((i for i, free in enumerate(free_at) if free <= exchange.began_at), len(free_at))
        free_at[lane : lane + 1] = [exchange.ended_at if exchange.ended_at is not None else math.inf]
        lanes.append(lane)
    return lanes


def _draw_requests(axes: Axes, exchanges: Sequence[Exchange], lanes: Sequence[int], began_at: float) -> list[Artist]:
    """Bars, and marks at the ends of what was no answer; what the legend explains."""
    began = [exchange.began_at - began_at for exchange in exchanges]
    ended = [
        (exchange.began_at if exchange.ended_at is None else exchange.ended_at) - began_at for exchange in exchanges
    ]
    first = [
        exchange.token_at[0] - began_at if exchange.token_at else end
        for exchange, end in zip(exchanges, ended, strict=True)
    ]
    handles: list[Artist] = []
    for left, right, colour, label in (
        (began, first, WAITING, "until the first token"),
        (first, ended, ANSWERING, "answering"),
    ):
        widths = [end - start for start, end in zip(left, right, strict=True)]
        axes.barh(lanes, widths, left=left, height=BAR, color=colour, linewidth=0)
        handles.append(Patch(color=colour, label=label))
    # Marks where one request of a row ends and the next begins.
    axes.vlines(began, [lane - BAR / 2 for lane in lanes], [lane + BAR / 2 for lane in lanes], "white", linewidth=1.2)
    marks = [_mark(exchange) for exchange in exchanges]
    for name, style in MARKS.items():
        points = [(end, lane) for end, lane, mark in zip(ended, lanes, marks, strict=True) if mark == name]
        if points:
            handles += axes.plot(*zip(*points, strict=True), ls="", zorder=3, label=name, **style)
    return handles


def _mark(exchange: Exchange) -> str | None:
    """What is drawn at its end; nothing for an answer."""
    if exchange.outcome is Outcome.ERROR:
        return "cancelled for a newer one" if exchange.error == ErrorKind.SUPERSEDED else "failed"
    return "client hung up" if exchange.outcome is Outcome.CANCELLED else None


def _draw_cpu(axes: Axes, cpu: Sequence[CpuSample], began_at: float) -> None:
    """Cores used between two samples: the slope of the CPU time. No more points than can be told apart."""
    thinned = [*cpu[: -1 : max(1, len(cpu) // MOST_POINTS)], cpu[-1]]
    pairs = [(a, b) for a, b in pairwise(thinned) if b.at > a.at]
    times = [b.at - began_at for _, b in pairs]
    cores = [(b.cpu_seconds - a.cpu_seconds) / (b.at - a.at) for a, b in pairs]
    axes.fill_between(times, cores, step="pre", color=GREY, alpha=0.5, linewidth=0)
    axes.set_ylabel("server's CPU,\ncores")
    axes.set_ylim(bottom=0.0)


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
