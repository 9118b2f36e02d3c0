"""Every microbenchmark runs, on the packaged model and with few samples: ``python -m pytest bench/native``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.calls import calls
from bench.native import abort_latency, step_boundary, step_pause, throughput
from bench.native.__main__ import main
from bench.native.probe_module import load_probe
from bench.native.tables import Table, as_text, percentile
from bench.peers import NotAvailableError
from pyllmcancel import _native
from pyllmcancel.models import packaged_model_path

PACKAGED = packaged_model_path()
NAME = "packaged"


@pytest.fixture(scope="module")
def probe() -> Any:
    try:
        return load_probe()
    except NotAvailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(probe: Any) -> Any:
    return probe.Model.load(str(PACKAGED))


def assert_rows_alike(table: Table) -> None:
    assert table.rows
    assert all(row.keys() == table.rows[0].keys() for row in table.rows)
    assert as_text(table)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "divided"])
def test_the_calls_of_a_step_do_not_grow_with_its_clients(probe: Any, unified: bool) -> None:
    probe.count_backend_calls()
    counted = probe.Model.load(str(PACKAGED))
    names = ("launches", "synchronizations", "writes", "reads", "copies")
    alone, *others = (
        [[row[name] for name in names] for row in calls(probe, counted, n, unified=unified)] for n in (1, 2, 5, 8)
    )
    assert alone[1][0] == 1, "the host computes one graph"
    assert all(found == alone for found in others)


def test_an_interrupted_step_returns_before_it_would_have_ended(probe: Any, model: Any) -> None:
    table = abort_latency.measure(probe, model, NAME, threads=(1,), ubatches=(128,), samples=5)
    assert_rows_alike(table)
    prefill, decode = table.rows
    assert (prefill["phase"], decode["phase"]) == ("prefill", "decode")
    assert 0 < prefill["median"] < prefill["step_ms"]


def test_both_ways_into_a_step_and_their_holds_of_the_gil_are_timed(probe: Any) -> None:
    table = step_boundary.measure(_native, probe, str(PACKAGED), NAME, calls=50, rounds=2)
    assert_rows_alike(table)
    seen = {(row["what"], row["way"]) for row in table.rows}
    ways = {("no work", "bare C++"), ("no work", "Cython"), ("no work", "pybind11")}
    assert seen == ways | {("GIL held", "Cython"), ("GIL held", "pybind11")}


def test_cython_and_pybind11_choose_the_same_tokens(probe: Any) -> None:
    steps = step_boundary.Steps(_native, probe, str(PACKAGED), n_prompt=8)
    items = [(0, 8)]
    chosen = []
    for _ in range(4):
        tokens = steps.cython.step(items).rows[0].token, steps.pybind.step(items).rows[0].token
        chosen.append(tokens)
        items = [(0, 1)]
    steps.close()
    assert all(cython == pybind for cython, pybind in chosen)


def test_pauses_are_timed_with_and_without_steps_ahead() -> None:
    table = step_pause.measure(PACKAGED, NAME, threads=1, clients=(1, 2), n_tokens=16, rounds=1)
    assert_rows_alike(table)
    assert [row["ahead"] for row in table.rows] == [False, True] * 4
    assert all(row["n"] >= 5 for row in table.rows)


def test_throughput_is_compared_with_llama_cpps_benchmarks() -> None:
    plan = throughput.Plan(threads=1, prompts=(16,), n_generate=4, batches=(1, 2), n_prompt=8, rounds=1)
    try:
        table = throughput.measure(_native, PACKAGED, NAME, plan)
    except NotAvailableError as error:
        pytest.skip(str(error))
    assert_rows_alike(table)
    assert [row["what"] for row in table.rows] == ["pp16", "tg4", "tg4x1", "tg4x2", "tg4x1", "tg4x2"]


def test_the_command_writes_what_it_prints(probe: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step-boundary", "--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "micro-step-boundary-stdlib-coder.json").read_text(encoding="utf-8"))
    assert (written["name"], written["unit"], len(written["rows"])) == ("step-boundary", "µs", 10)
    assert "a step that computes nothing" in capsys.readouterr().out


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.0), (75, 3.0), (99, 4.0), (100, 4.0)])
def test_a_percentile_is_a_value_of_the_sample(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected
