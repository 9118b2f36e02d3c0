"""The sweep on one model of each memory kind; all of llama.cpp's architectures are one command (CONTRIBUTING)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architectures.sweep import Report, sweep

KINDS = ("attention", "sliding-window", "recurrent", "hybrid")


@pytest.fixture(scope="module")
def reports(model_files: dict[str, Path]) -> dict[str, Report]:
    return {kind: sweep(model_files[kind]) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_at_any_node_changes_nobody_else_by_a_single_bit(reports: dict[str, Report], kind: str) -> None:
    report = reports[kind]
    assert report.findings == []
    assert report.exact == report.points


@pytest.mark.parametrize("kind", KINDS)
def test_the_sweep_stops_steps_in_the_middle(reports: dict[str, Report], kind: str) -> None:
    assert reports[kind].aborted > reports[kind].points / 4


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_without_the_rules_for_its_memory_kind_neighbours_are_harmed(model_files: dict[str, Path], kind: str) -> None:
    report = sweep(model_files[kind], protected=False, stride=7)
    assert report.wrong > 0
