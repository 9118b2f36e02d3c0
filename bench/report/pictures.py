"""The report's plots: one function each, named as `sections` and the files name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.report.results import Results
from bench.side_by_side.cancel_latency import KINDS
from bench.side_by_side.load import PERCENTS, REQUESTS
from pyllmcancel.bench import plots

DPI = 100
WIDTH, HEIGHT = 7.5, 3.8


def throughput(results: Results) -> Figure | None:
    """Tokens a second, a group of bars for each number of clients."""
    groups = [f"{n} client{'s' if n > 1 else ''}" for n in REQUESTS]
    values = {
        peer: [results.median(f"throughput-{n}", peer, "tokens_per_second") for n in REQUESTS] for peer in results.peers
    }
    return bars(values, groups, "No cancels", "answers' tokens per second")


def cancel_latency(phase: str) -> Callable[[Results], Figure | None]:
    def draw(results: Results) -> Figure | None:
        kinds = [kind.name for kind in KINDS if kind.name.startswith(phase)]
        found = {
            peer: [value for kind in kinds for value in results.values("cancel-latency", peer, kind, "latency")]
            for peer in results.peers
        }
        return plots.cancel_latency_cdf(found, title=f"Cancel latency in {phase}") if any(found.values()) else None

    return draw


def typing_storm(results: Results) -> Figure | None:
    columns = {
        "alone": ("typing-storm", "ttft_alone_s"),
        "storm, one key": ("typing-storm", "ttft_last_key_s"),
        "storm, no key": ("typing-storm-no-key", "ttft_last_key_s"),
    }
    values = {peer: [results.median(name, peer, path) for name, path in columns.values()] for peer in results.peers}
    return bars(values, list(columns), "Typing storm: the last key's first token", "seconds")


def stop_then_next(results: Results) -> Figure | None:
    columns = {"alone": "ttft_alone_s", "after a stop in a long prefill": "stop_to_first_token"}
    values = {
        peer: [results.median("stop-then-next", peer, path) for path in columns.values()] for peer in results.peers
    }
    title = "A short request's first token"
    return bars(values, list(columns), title, "seconds (logarithmic)", logarithmic=True)


def goodput(results: Results) -> Figure | None:
    curves: dict[str, list[tuple[float, float]]] = {}
    for peer in results.peers:
        medians = [(percent, results.median(f"goodput-{percent}", peer, "tokens_per_second")) for percent in PERCENTS]
        points = [(float(percent), value) for percent, value in medians if value is not None]
        if points:
            curves[peer] = points
    return plots.goodput(curves) if curves else None


def bars(
    values: dict[str, list[float | None]], groups: Sequence[str], title: str, unit: str, *, logarithmic: bool = False
) -> Figure | None:
    """Groups of bars with their values on top, a colour for each name; None if there is nothing to show."""
    known = {name: row for name, row in values.items() if any(value is not None for value in row)}
    if not known:
        return None
    figure, axes = plots.new_figure(title, WIDTH, HEIGHT)
    width = 0.8 / len(known)
    for number, (name, row) in enumerate(known.items()):
        places = [i + (number - (len(known) - 1) / 2) * width for i, value in enumerate(row) if value is not None]
        heights = [value for value in row if value is not None]
        # By its place among all, so that a peer has one colour in every plot.
        colour = plots.COLOURS[list(values).index(name) % len(plots.COLOURS)]
        drawn = axes.bar(places, heights, width * 0.92, color=colour, label=name)
        axes.bar_label(drawn, [short(height) for height in heights], fontsize=8, padding=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(False, axis="x")
    axes.set_ylabel(unit)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.margins(y=0.12)
    if logarithmic:
        axes.set_yscale("log")
        # A bar's foot has no meaning on this scale; a decade below the lowest leaves something to see of it.
        axes.set_ylim(bottom=min(value for row in known.values() for value in row if value is not None) / 10)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    figure.legend(loc="outside lower center", frameon=False, ncols=min(4, len(known)))
    return figure


def short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


PICTURES: dict[str, Callable[[Results], Figure | None]] = {
    "throughput": throughput,
    "cancel-latency-prefill": cancel_latency("prefill"),
    "cancel-latency-decode": cancel_latency("decode"),
    "typing-storm": typing_storm,
    "stop-then-next": stop_then_next,
    "goodput": goodput,
}


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Draw what there are figures for; a plot of an earlier run of which there are none now is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, draw in PICTURES.items():
        path = folder / f"{name}.png"
        path.unlink(missing_ok=True)
        figure = draw(results)
        if figure is not None:
            # Without the time of drawing, the same figures give the same file.
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
            found[name] = path
    return found
