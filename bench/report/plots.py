"""Plots, with matplotlib: distributions of times, and the house's style.

The functions take plain numbers, named by what is compared (servers, percentages), so that a report over several
servers uses the same functions. All times are in milliseconds, and small print explains the words.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter

from pyllmcancel.bench.percentiles import percentile

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT, GRID = "#222222", "#666666", "#e4e4e4"
LEGEND_CHARACTERS, NOTE_CHARACTERS = 12.5, 16.0  # per inch
LEGEND_INCHES, LINE_INCHES, MARGIN = 0.25, 0.17, 0.15
SHORTEST_MS = 0.01  # smaller values count as 0
ENOUGH_FOR_P99 = 100  # values; p99 of fewer would just be the largest
FORMATS = ("png", "svg")

PERCENTILES = (
    "p50: half of the values are no larger; p99: 99 of 100 are no larger; max: the largest; n: the number of values."
)
CANCEL_LATENCY = (
    "Cancel latency: from the moment at which a client hangs up until the server's process uses no more CPU time, by "
    f"the operating system's account. {PERCENTILES}"
)
GOODPUT = (
    "Goodput: tokens of answers that came to their end, per second of the run; tokens of others do not count. "
    "Cancelled: the client hung up, or a newer request of the same key superseded it."
)


def new_figure(title: str, width: float = 8.0, height: float = 4.5) -> tuple[Figure, Axes]:
    """Make an empty plot in the house's style."""
    # Room for a last tick's label that is wider than its tick.
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.14, h_pad=0.08))
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
    axes.tick_params(color="#999999", labelcolor=INK)
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def finish(figure: Figure, axes: Axes, note: str = "") -> None:
    """Add the legend below the axes, where it hides nothing, and small print that explains the words."""
    width, height = figure.get_size_inches()
    handles, labels = axes.get_legend_handles_labels()
    columns = min(len(labels), max(1, int(width * LEGEND_CHARACTERS / (max(map(len, labels), default=0) + 6)))) or 1
    lines = textwrap.wrap(note, int((width - 2 * MARGIN) * NOTE_CHARACTERS))
    small = LINE_INCHES * len(lines) + (MARGIN if lines else 0.0)
    foot = small + LEGEND_INCHES * math.ceil(len(labels) / columns) + (MARGIN if handles else 0.0)
    figure.set_size_inches(width, height + foot)
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.set(rect=(0.0, foot / (height + foot), 1.0, height / (height + foot)))  # type: ignore[call-arg]
    if handles:
        place = (MARGIN / width, (foot - MARGIN / 2) / (height + foot))
        figure.legend(
            loc="upper left", bbox_to_anchor=place, borderpad=0, borderaxespad=0, frameon=False, ncols=columns
        )
    if lines:
        place = (MARGIN / width, small / (height + foot))
        figure.text(*place, "\n".join(lines), va="top", fontsize=8, color=FAINT, linespacing=1.25)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write the plot as PNG and SVG; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for suffix in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def distribution(found: Mapping[str, Sequence[float]], *, title: str, axis: str, counted: str, note: str) -> Figure:
    """Plot the share of values that are no larger than x, with a line for each name.

    Most of the values may be 0, which has a place of its own at the left of the logarithmic axis.

    Parameters
    ----------
    found
        Milliseconds.
    axis, counted
        The label of the axis, and the counted things, as in "share of cancels".
    """
    figure, axes = new_figure(title)
    known = {name: [shown_ms(value) for value in sorted(values)] for name, values in found.items() if values}
    every = [value for values in known.values() for value in values]
    fewest = min((len(values) for values in known.values()), default=0)
    axes.set_xlabel(f"{axis}, ms (logarithmic)", color=INK)
    _time_axis(axes, every)
    for colour, (name, values) in zip(cycle(COLOURS), known.items(), strict=False):
        shares = [100.0 * (rank + 1) / len(values) for rank in range(len(values))]
        axes.step([values[0], *values], [0.0, *shares], where="post", color=colour, linewidth=2.2)
        axes.plot([], [], color=colour, linewidth=2.2, label=f"{name}: {_figures(values, fewest)}")
        n_zero = sum(value == 0.0 for value in values)
        if n_zero:
            axes.plot([0.0], [shares[n_zero - 1]], "o", color=colour, markersize=6, clip_on=False, zorder=3)
    least = min((sum(value == 0.0 for value in values) / len(values) for values in known.values()), default=0.0)
    # If nearly all values are 0, the axis shows the rest.
    bottom = min(90, math.floor(10 * least) * 10) if least >= 0.6 else 0
    axes.set_ylabel(f"share of {counted}, %" + (f" (from {bottom} %)" if bottom else ""), color=INK)
    axes.set_ylim(bottom, 100 + 0.02 * (100 - bottom))
    axes.set_yticks(range(bottom, 101, 20 if bottom == 0 else 2 if bottom == 90 else 5))
    finish(figure, axes, note)
    return figure


def cancel_latency_cdf(latencies: Mapping[str, Sequence[float]], *, title: str = "Cancel latency") -> Figure:
    """Plot the share of cancels that had taken effect after x, with a line for each name.

    Parameters
    ----------
    latencies
        Seconds from the client's hang-up until its computation had stopped.
    """
    found = {name: [value * 1e3 for value in values] for name, values in latencies.items()}
    axis = "from the client's hang-up until its computation had stopped"
    return distribution(found, title=title, axis=axis, counted="cancels", note=CANCEL_LATENCY)


# -- scales and words --------------------------------------------------------------------------------------------------


def shown_ms(value: float) -> float:
    """Treat tiny values as 0: on a logarithmic axis noise would take most of the room."""
    return value if value >= SHORTEST_MS else 0.0


def _time_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the axis logarithmic, from the smallest to the largest value, with 0 at its left end if there are any
    zeros.
    """
    positive = [value for value in values if value > 0.0] or [1.0]
    low, high = _step_below(min(positive)), _step_above(max(positive))
    if low == high or max(values, default=0.0) == 0.0:
        high = low * 10
    decades = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2.4 else (1,)
    ticks = [factor * 10.0**decade for decade in decades for factor in factors]
    ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    if 0.0 in values:
        axes.set_xscale("symlog", linthresh=low, linscale=0.35)
        axes.set_xlim(0.0, high)
        axes.minorticks_off()
        axes.axvspan(0.0, low, color="#f4f4f4", zorder=0, linewidth=0)
        ticks = [0.0, *ticks]
    else:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _step_below(value: float) -> float:
    """Return the largest value of 1, 2 and 5 times a power of ten that is no larger."""
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return max(factor * decade for factor in (1, 2, 5) if factor * decade <= value * (1 + 1e-9))


def _step_above(value: float) -> float:
    decade = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return min(factor * decade for factor in (1, 2, 5, 10) if factor * decade >= value * (1 - 1e-9))


def _figures(values: Sequence[float], fewest: int) -> str:
    """Return a legend's figures of sorted values; `fewest` is the number of values in the line that has the fewest."""
    last = f"p99 {_ms(percentile(values, 99) or 0.0)}" if fewest >= ENOUGH_FOR_P99 else f"max {_ms(values[-1])}"
    n_zero = sum(value == 0.0 for value in values)
    nothing = f"{100 * n_zero / len(values):.0f} % are 0, " if n_zero else ""
    return f"{nothing}p50 {_ms(percentile(values, 50) or 0.0)}, {last} (n = {len(values):,})"


def _ms(value: float) -> str:
    if value == 0.0 or value >= 100:
        return f"{value:,.0f} ms"
    return f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"
