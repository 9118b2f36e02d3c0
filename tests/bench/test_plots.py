"""Plots say what was measured, in one unit, and what their words mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report.pictures import PICTURES
from pyllmcancel.bench import pictures, plots
from pyllmcancel.bench.client import Ask, Exchange, Outcome
from pyllmcancel.bench.server_truth import Stop
from pyllmcancel.bench.summary import summarise
from pyllmcancel.bench.workbench import Run

PNG = b"\x89PNG\r\n\x1a\n"
EXCHANGES: Mapping[str, Mapping[str, Any]] = {
    "answered": {"outcome": Outcome.OK, "sent_at": 0.0, "token_at": [0.25, 0.5], "ended_at": 0.5},
    "hung up": {"outcome": Outcome.CANCELLED, "sent_at": 0.0, "ended_at": 0.5},
    "superseded": {"outcome": Outcome.CANCELLED, "sent_at": 0.0, "ended_at": 0.5, "error": "superseded"},
    "failed": {"outcome": Outcome.ERROR, "sent_at": 0.0, "ended_at": 0.5, "error": "http_500"},
}


def run_of(*kinds: str) -> Run:
    asks = [Ask(prompt="x", max_tokens=2, request_id=f"r-{i}") for i in range(len(kinds))]
    exchanges = [Exchange(ask, 0.0, **EXCHANGES[kind]) for ask, kind in zip(asks, kinds, strict=True)]
    return Run("mix", {}, 0.0, 1.0, exchanges)


def lines_of(axes: Axes) -> list[list[tuple[float, float]]]:
    """The points of each line that is drawn."""
    points = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]  # type: ignore[arg-type]
    return [line for line in points if line]


def distribution(**values: list[float]) -> Figure:
    return plots.distribution(values, title="T", axis="time", counted="cancels", note="Words.")


def texts(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in figure.texts)


def test_a_distribution_climbs_from_nothing_to_all() -> None:
    axes = distribution(a=[20.0, 10.0], b=[1000.0], none=[]).axes[0]
    assert lines_of(axes) == [[(10.0, 0.0), (10.0, 50.0), (20.0, 100.0)], [(1000.0, 0.0), (1000.0, 100.0)]]
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["a: p50 15.0 ms, max 20.0 ms (n = 2)", "b: p50 1,000 ms, max 1,000 ms (n = 1)"]


def test_of_enough_values_the_largest_is_not_told_but_the_99th_of_100() -> None:
    labels = distribution(a=[1.0] * 99 + [500.0]).axes[0].get_legend_handles_labels()[1]
    assert labels == ["a: p50 1.0 ms, p99 5.99 ms (n = 100)".replace("5.99", "6.0")]


def test_where_nearly_all_are_nothing_the_rest_is_what_is_shown() -> None:
    values = [0.0] * 94 + [0.005] + [2.0, 3.0, 4.0, 5.0, 6.0]
    axes = distribution(a=values).axes[0]
    assert axes.get_ylim()[0] == 90
    assert axes.get_ylabel() == "share of cancels, % (from 90 %)"
    assert axes.get_xlim() == (0.0, 10.0)
    assert lines_of(axes)[-1] == [(0.0, 95.0)]
    assert axes.get_legend_handles_labels()[1] == ["a: 95 % are 0, p50 0 ms, p99 5.0 ms (n = 100)"]


@pytest.mark.parametrize("values", [[0.0], [0.0] * 50, [0.0, 7.0], [5.0], [0.01, 100_000.0]])
def test_whatever_was_measured_it_lies_inside_and_the_ends_are_labelled(values: list[float]) -> None:
    axes = distribution(a=values).axes[0]
    low, high = axes.get_xlim()
    assert low <= min(values) <= max(values) <= high
    assert len(axes.get_xticks()) >= 2


def test_cancel_latencies_are_drawn_in_milliseconds() -> None:
    figure = plots.cancel_latency_cdf({"a": [0.010, 0.020]})
    assert lines_of(figure.axes[0]) == [[(10.0, 0.0), (10.0, 50.0), (20.0, 100.0)]]
    assert "ms" in figure.axes[0].get_xlabel()
    assert "Cancel latency: from the moment at which a client hangs up" in texts(figure)


def test_goodput_has_a_line_for_each_server_in_order_of_the_percentage() -> None:
    figure = plots.goodput({"a": [(50.0, 10.0), (0.0, 20.0)], "b": [(0.0, 15.0), (50.0, 14.0)]})
    assert lines_of(figure.axes[0])[0] == [(0.0, 20.0), (50.0, 10.0)]
    assert figure.axes[0].get_ylim()[0] == 0.0


def test_every_request_is_counted_once_and_superseded_ones_as_cancelled() -> None:
    run = run_of("answered", "answered", "hung up", "superseded", "failed")
    assert pictures.endings_of(run) == {"answered": 2, "hung up": 1, "superseded": 1, "failed": 1}
    axes = plots.endings({"a": pictures.endings_of(run)}).axes[0]
    labels = ["answered", "cancelled: hung up", "cancelled: superseded", "failed"]
    assert axes.get_legend_handles_labels()[1] == labels
    assert axes.get_xlim() == (0.0, 5.0)


def test_goodput_lies_over_the_share_that_was_really_cancelled() -> None:
    runs = {"0 %": run_of("answered"), "25 %": run_of("answered", "hung up", "superseded", "answered")}
    figure = pictures.goodput(runs, [summarise(run) for run in runs.values()], "")
    assert figure is not None
    assert lines_of(figure.axes[0]) == [[(0.0, 2.0), (50.0, 4.0)]]


def test_a_run_has_the_plots_that_it_has_something_for(tmp_path: Path) -> None:
    run = run_of("answered", "hung up")
    plain = pictures.draw({"a": run}, [summarise(run)], tmp_path / "plain", "model, scenario mix")
    assert {path.stem for path in plain} == {"endings", "first-token"}
    run.stops["r-1"] = Stop(0.002, 0.0)
    watched = pictures.draw({"a": run}, [summarise(run)], tmp_path / "watched", "model, scenario mix")
    assert {path.stem for path in watched} == {"endings", "first-token", "cancel-latency", "cancel-waste"}


def test_a_plot_is_saved_as_png_and_svg(tmp_path: Path) -> None:
    png, svg = plots.save(plots.goodput({"a": [(0.0, 1.0)]}), tmp_path / "new", "goodput")
    assert png.read_bytes().startswith(PNG)
    assert "<svg" in svg.read_text()


def test_the_legend_and_the_small_print_lie_under_the_axes() -> None:
    figure = distribution(a=[1.0], b=[2.0], c=[3.0])
    figure.draw_without_rendering()  # type: ignore[no-untyped-call]
    axes_foot = figure.axes[0].get_tightbbox().y0  # type: ignore[union-attr]
    (legend,), (note,) = figure.legends, figure.texts
    assert axes_foot > legend.get_window_extent().y1
    assert legend.get_window_extent().y0 > note.get_window_extent().y1
    assert note.get_window_extent().y0 >= 0


def test_the_reports_bars_are_explained() -> None:
    assert all(picture.note for picture in PICTURES.values())
    assert {picture.scale for picture in PICTURES.values() if " ms" in picture.unit} == {1e3}
