"""Plots say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllmcancel.bench import plots

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_distribution_climbs_from_nothing_to_all() -> None:
    figure = plots.cancel_latency_cdf({"a": [0.02, 0.01], "b": [1.0], "none": []})
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 0]  # type: ignore[arg-type]
    assert [list(line.get_ydata()) for line in lines] == [[0.0, 0.5, 1.0], [0.0, 1.0]]  # type: ignore[arg-type]
    assert list(lines[0].get_xdata()) == pytest.approx([10.0, 10.0, 20.0])  # type: ignore[arg-type]
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["a (n = 2; p50 15.0 ms, p99 19.9 ms)", "b (n = 1; p50 1,000 ms, p99 1,000 ms)"]


def test_goodput_has_a_line_for_each_server_in_order_of_the_percentage() -> None:
    figure = plots.goodput({"a": [(50.0, 10.0), (0.0, 20.0)], "b": [(0.0, 15.0), (50.0, 14.0)]})
    assert list(figure.axes[0].lines[0].get_xdata()) == [0.0, 50.0]  # type: ignore[arg-type]
    assert list(figure.axes[0].lines[0].get_ydata()) == [20.0, 10.0]  # type: ignore[arg-type]
    assert figure.axes[0].get_ylim()[0] == 0.0


def test_a_plot_is_saved_as_png_and_svg(tmp_path: Path) -> None:
    png, svg = plots.save(plots.goodput({"a": [(0.0, 1.0)]}), tmp_path / "new", "goodput")
    assert png.read_bytes().startswith(PNG)
    assert "<svg" in svg.read_text()
