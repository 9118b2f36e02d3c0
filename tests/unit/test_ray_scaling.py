"""How many replicas Ray should have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from pyllmcancel.ray.scaling import CELLS, SLOTS, Load, load
from pyllmcancel.requests.effects import Counts
from pyllmcancel.scheduling.scheduler import Capacity, Occupancy


@dataclass
class Seen:
    """The data that Ray passes to a policy."""

    aggregated_metrics: Any
    target_num_replicas: int = 5


def wanted(slots: list[float], cells: list[float], target: float = 0.8) -> int:
    metrics = {SLOTS: dict(enumerate(slots)), CELLS: dict(enumerate(cells))}
    return math.ceil(Load(target)(Seen(metrics))[0])


def test_a_replica_reports_what_waits_and_runs_and_the_cells_that_no_idle_prefix_has() -> None:
    counts = Counts(waiting=6, running=4, cancelling=3, sessions=1)
    found = load(counts, Occupancy(slots=4, cells=250, idle_cells=700), Capacity(slots=4, cells=1000))
    assert found == {SLOTS: 2.5, CELLS: 0.25}


def test_an_embedder_has_no_cells() -> None:
    assert load(Counts(0, 0, 0, 0), Occupancy(), Capacity(slots=0, cells=0)) == {SLOTS: 0.0, CELLS: 0.0}


@pytest.mark.parametrize(
    ("slots", "cells", "replicas"),
    [
        ([0.0, 0.0], [0.0, 0.0], 0),  # Ray keeps to its min_replicas
        ([0.4], [0.1], 1),
        ([0.8, 0.8, 0.8], [0.0, 0.0, 0.0], 3),  # at the target nothing changes
        ([0.9, 0.9], [0.1, 0.1], 3),
        ([4.0], [0.1], 5),  # of requests that wait
        ([0.25, 0.25], [1.0, 1.0], 3),  # few requests, with long prompts
    ],
)
def test_there_are_so_many_that_each_has_its_share(slots: list[float], cells: list[float], replicas: int) -> None:
    assert wanted(slots, cells) == replicas


def test_the_target_can_be_set() -> None:
    assert wanted([0.9], [0.0], target=0.3) == 3


@pytest.mark.parametrize("metrics", [None, {}, {SLOTS: {}, CELLS: {}}])
def test_before_anybody_has_reported_nothing_changes(metrics: Any) -> None:
    assert Load()(Seen(metrics)) == (5, {})


@pytest.mark.parametrize("target", [0.0, -1.0, 1.5])
def test_a_target_that_cannot_be_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="target must be"):
        Load(target)
