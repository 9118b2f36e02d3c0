"""Plots say what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllmcancel.bench import plots
from pyllmcancel.bench.client import Ask, Exchange, Outcome
from pyllmcancel.bench.server_truth import CpuSample

PNG = b"\x89PNG\r\n\x1a\n"


def exchange(began: float, ended: float, outcome: Outcome = Outcome.OK, first: float | None = None) -> Exchange:
    made = Exchange(Ask(prompt="x", max_tokens=1, request_id="r"), began_at=began, ended_at=ended, outcome=outcome)
    made.token_at = [first] if first is not None else []
    return made


EXCHANGES = [
    exchange(0.0, 2.0, first=0.5),
    exchange(0.1, 0.6, Outcome.CANCELLED),
    exchange(0.7, 3.0, first=1.0),
    exchange(0.8, 1.2, Outcome.ERROR),
]


def test_a_request_takes_the_lowest_row_that_is_free() -> None:
    assert plots.pack(EXCHANGES) == [0, 1, 1, 2]
    assert plots.pack([]) == []


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


@pytest.mark.parametrize("cpu", [(), (CpuSample(0.0, 0.0), CpuSample(1.0, 2.0), CpuSample(3.0, 2.0))])
def test_a_timeline_has_a_row_for_each_in_flight_and_one_for_the_cpu(cpu: tuple[CpuSample, ...]) -> None:
    figure = plots.timeline(EXCHANGES, 0.0, cpu=cpu)
    assert len(figure.axes) == (2 if cpu else 1)
    assert figure.axes[0].get_ylim() == (-0.7, 2.7)
    assert figure.axes[-1].get_xlabel() == "seconds"


def test_a_plot_is_saved_as_png_and_svg(tmp_path: Path) -> None:
    png, svg = plots.save(plots.timeline(EXCHANGES, 0.0), tmp_path / "new", "timeline")
    assert png.read_bytes().startswith(PNG)
    assert "<svg" in svg.read_text()
