"""All plots for which the given runs have data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pyllmcancel.bench import plots
from pyllmcancel.bench.exchange import Outcome
from pyllmcancel.bench.summary import Figures, cancel_latencies
from pyllmcancel.bench.workbench import Run


def draw(runs: Mapping[str, Run], summaries: Sequence[Figures], folder: Path, about: str) -> list[Path]:
    """Draw the plots; return the files. Runs are given by name, `summaries` in the same order."""
    figures = {
        "endings": plots.endings({name: endings_of(run) for name, run in runs.items()}, about=about),
        "first-token": first_tokens(runs, about),
        "cancel-latency": latencies(runs),
        "cancel-waste": waste(runs, about),
        "goodput": goodput(runs, summaries, about),
    }
    found = [(name, figure) for name, figure in figures.items() if figure is not None]
    return [path for name, figure in found for path in plots.save(figure, folder, name)]


def endings_of(run: Run) -> Counter[str]:
    """Return how many requests had each kind of end; a superseded request was cancelled, and did not fail."""
    names = {Outcome.OK: "answered", Outcome.ERROR: "failed"}
    return Counter(
        ("hung up" if entry.hung_up else "superseded") if entry.outcome is Outcome.CANCELLED else names[entry.outcome]
        for entry in run.exchanges
        if entry.outcome is not None
    )


def first_tokens(runs: Mapping[str, Run], about: str) -> Figure | None:
    found = {
        name: [entry.ttft * 1e3 for entry in run.exchanges if entry.outcome is Outcome.OK and entry.ttft is not None]
        for name, run in runs.items()
    }
    if not any(found.values()):
        return None
    axis = "from the request to the first token"
    return plots.distribution(
        found, title="Time to the first token", axis=axis, counted="answers", note=plots.FIRST_TOKEN, about=about
    )


def latencies(runs: Mapping[str, Run]) -> Figure | None:
    found = {name: cancel_latencies(run) for name, run in runs.items()}
    return plots.cancel_latency_cdf(found) if any(found.values()) else None


def waste(runs: Mapping[str, Run], about: str) -> Figure | None:
    found = {name: [stop.cpu_seconds * 1e3 for stop in run.stops.values()] for name, run in runs.items()}
    if not any(found.values()):
        return None
    axis = "CPU time after the hang-up"
    return plots.distribution(
        found, title="Cancel waste", axis=axis, counted="cancels", note=plots.CANCEL_WASTE, about=about
    )


def goodput(runs: Mapping[str, Run], summaries: Sequence[Figures], about: str) -> Figure | None:
    """Plot over the share that was really cancelled: some requests to be cut ended before, others were superseded."""
    points = [
        (100.0 * found["cancelled"] / found["requests"], found["goodput_tokens_per_s"])
        for run, found in zip(runs.values(), summaries, strict=True)
        if run.scenario == "mix" and found["requests"] and found["goodput_tokens_per_s"] is not None
    ]
    return plots.goodput({"_": points}, about=about) if len(points) > 1 else None
