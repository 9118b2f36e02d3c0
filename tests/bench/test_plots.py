"""Plots say what was measured, in one unit, and what their words mean."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report import plots


def lines_of(axes: Axes) -> list[list[tuple[float, float]]]:
    points = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]  # type: ignore[arg-type]
    return [line for line in points if line]


def distribution(**values: list[float]) -> Figure:
    return plots.distribution(values, title="T", axis="time", counted="cancels", note="Words.")


def test_a_distribution_climbs_from_nothing_to_all() -> None:
    axes = distribution(a=[20.0, 10.0], b=[1000.0], none=[]).axes[0]
    assert lines_of(axes) == [[(10.0, 0.0), (10.0, 50.0), (20.0, 100.0)], [(1000.0, 0.0), (1000.0, 100.0)]]
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["a: p50 15.0 ms, max 20.0 ms (n = 2)", "b: p50 1,000 ms, max 1,000 ms (n = 1)"]


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
