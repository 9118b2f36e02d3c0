"""The benchmark of gaps between sequences: clients that come and go, with and without moves, get the same answers."""

from __future__ import annotations

from pathlib import Path

from bench.neighbours import rows, run
from pyllmcancel._native import Model


def test_moves_save_graphs_and_change_no_answer(model_files: dict[str, Path]) -> None:
    model = Model.load(model_files["attention"])
    stay, move = (run(model, 6, 8, 120, 1, gathers=gathers) for gathers in (False, True))
    assert stay.answers == move.answers or not stay.comparable
    assert len(stay.answers) > 3
    assert (stay.n_moved, stay.n_steps) == (0, move.n_steps)
    assert move.n_moved > 0
    assert move.n_graphs < stay.n_graphs
    assert move.n_reused > stay.n_reused
    assert [row.count("|") for row in rows([(stay, move)], 6)] == [8, 8]
