"""The report's plots, named as `sections` and the files name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.report import plots
from bench.report.results import Results
from bench.side_by_side.cancel_latency import KINDS
from bench.side_by_side.load import PERCENTS, REQUESTS

DPI = 100
WIDTH, HEIGHT = 7.5, 3.8


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars, a colour for each peer: the medians of a figure of a measurement, by the group's name."""

    title: str
    unit: str
    groups: Mapping[str, tuple[str, str]]
    note: str
    scale: float = 1.0
    logarithmic: bool = False


MEDIANS = "Bars are medians of all rounds."

PICTURES: dict[str, Bars] = {
    "throughput": Bars(
        "No cancels",
        "answers' tokens per second",
        {f"{n} client{'s' if n > 1 else ''}": (f"throughput-{n}", "tokens_per_second") for n in REQUESTS},
        note=MEDIANS,
    ),
    "typing-storm": Bars(
        "Typing storm: the last key's first token",
        "first token after, ms",
        {
            "alone": ("typing-storm", "ttft_alone_s"),
            "storm, one key": ("typing-storm", "ttft_last_key_s"),
            "storm, no key": ("typing-storm-no-key", "ttft_last_key_s"),
        },
        note="Alone: nothing else is asked. Storm: seven requests of earlier keys come before it. One key: they name "
        f"one supersede key, so that a newer request may cancel the older ones. {MEDIANS}",
        scale=1e3,
    ),
    "stop-then-next": Bars(
        "A short request's first token",
        "first token after, ms (logarithmic)",
        {
            "alone": ("stop-then-next", "ttft_alone_s"),
            "after a stop in a long prefill": ("stop-then-next", "stop_to_first_token"),
        },
        note=f"After a stop: another client has just hung up in the middle of a prompt of 2,000 tokens. {MEDIANS}",
        scale=1e3,
        logarithmic=True,
    ),
    "goodput": Bars(
        "Goodput by the share of clients that hang up",
        "tokens of complete answers per second",
        {f"{percent} %": (f"goodput-{percent}", "tokens_per_second") for percent in PERCENTS},
        note=f"{plots.GOODPUT} {MEDIANS}",
    ),
}


def draw_all(results: Results, folder: Path) -> dict[str, Path]:
    """Draw what there are figures for; a plot of an earlier run of which there are none now is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {name: bars(picture, results) for name, picture in PICTURES.items()}
    figures |= {f"cancel-latency-{phase}": latencies(results, phase) for phase in ("prefill", "decode")}
    found = {}
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        path.unlink(missing_ok=True)
        if figure is not None:
            # Without the time of drawing, the same figures give the same file.
            figure.savefig(path, dpi=DPI, metadata={"Software": None})
            found[name] = path
    return found


def latencies(results: Results, phase: str) -> Figure | None:
    kinds = [kind.name for kind in KINDS if kind.name.startswith(phase)]
    found = {
        peer: [value for kind in kinds for value in results.values("cancel-latency", peer, kind, "latency")]
        for peer in results.peers
    }
    return plots.cancel_latency_cdf(found, title=f"Cancel latency in {phase}") if any(found.values()) else None


def bars(picture: Bars, results: Results) -> Figure | None:
    """Draw them with their values on top; None if there is nothing to show."""
    groups = picture.groups.values()
    # By its place among all, so that a peer has one colour in every plot.
    colours = dict(zip(results.peers, plots.COLOURS * len(results.peers), strict=False))
    rows = {
        peer: [scaled(results.median(name, peer, path), picture.scale) for name, path in groups]
        for peer in results.peers
    }
    known = {peer: row for peer, row in rows.items() if any(value is not None for value in row)}
    if not known:
        return None
    figure, axes = plots.new_figure(picture.title, WIDTH, HEIGHT)
    width = 0.8 / len(known)
    for number, (peer, row) in enumerate(known.items()):
        heights = {
            i + (number - (len(known) - 1) / 2) * width: value for i, value in enumerate(row) if value is not None
        }
        drawn = axes.bar(list(heights), list(heights.values()), width * 0.92, color=colours[peer], label=peer)
        axes.bar_label(drawn, [short(value) for value in heights.values()], fontsize=8, padding=2)
    axes.set_xticks(range(len(groups)), list(picture.groups))
    axes.grid(False, axis="x")
    axes.set_ylabel(picture.unit)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.margins(y=0.12)
    if picture.logarithmic:
        axes.set_yscale("log")
        # A bar's foot has no meaning on this scale; a decade below the lowest leaves something to see of it.
        axes.set_ylim(bottom=lowest(list(known.values())) / 10)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    plots.finish(figure, axes, picture.note)
    return figure


def scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def lowest(rows: Sequence[Sequence[float | None]]) -> float:
    return min(value for row in rows for value in row if value is not None)


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
