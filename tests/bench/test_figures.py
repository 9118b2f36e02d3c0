"""Percentiles, gaps, CPU time between samples, and what a run comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllmcancel.bench.client import Ask, Exchange, Outcome
from pyllmcancel.bench.percentiles import distribution, percentile
from pyllmcancel.bench.report import SCHEMA, as_json, write_json
from pyllmcancel.bench.server_truth import CpuSample, Stop, cpu_at, unwanted
from pyllmcancel.bench.summary import cut_phase, summarise
from pyllmcancel.bench.workbench import Run


def exchange(name: str, began: float, ended: float, **changed: Any) -> Exchange:
    made = Exchange(Ask(prompt="x", max_tokens=4, request_id=name), began_at=began, sent_at=began, ended_at=ended)
    for field, value in changed.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (90, 3.7), (99, 3.97), (100, 4.0)])
def test_a_percentile_lies_between_the_nearest_ranks(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected)


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 50) is None
    assert distribution([None])["p50"] is None
    assert distribution([None])["n"] == 0


def test_a_distribution_leaves_out_what_did_not_happen() -> None:
    found = distribution([0.001, None, 0.003], 1e3)
    assert found == {"n": 2, "mean": 2.0, "p50": 2.0, "p90": 2.8, "p99": 2.98, "min": 1.0, "max": 3.0}


def test_no_client_waits_in_the_gaps_between_overlapping_spans() -> None:
    assert unwanted([(2.0, 4.0), (1.0, 3.0), (5.0, 6.0)], 0.0, 8.0) == [(0.0, 1.0), (4.0, 5.0), (6.0, 8.0)]
    assert unwanted([(0.0, 9.0)], 1.0, 8.0) == []
    assert unwanted([], 1.0, 2.0) == [(1.0, 2.0)]
    assert unwanted([(9.0, 10.0)], 1.0, 2.0) == [(1.0, 2.0)]


def test_cpu_time_between_two_samples_lies_on_their_line() -> None:
    samples = [CpuSample(1.0, 10.0), CpuSample(2.0, 12.0), CpuSample(3.0, 12.0)]
    assert [cpu_at(samples, moment) for moment in (0.5, 1.0, 1.5, 2.5, 9.0)] == [10.0, 10.0, 11.0, 12.0, 12.0]


@pytest.mark.parametrize(
    ("changed", "phase"),
    [
        ({"sent_at": None}, "sending"),
        ({}, "before the headers"),
        ({"first_byte_at": 1.1}, "before the first token"),
        ({"first_byte_at": 1.1, "token_at": [1.2]}, "streaming"),
    ],
)
def test_a_hang_up_is_told_by_how_far_the_answer_had_come(changed: dict[str, Any], phase: str) -> None:
    assert cut_phase(exchange("a", 1.0, 2.0, **changed)) == phase


def test_a_superseded_request_is_counted_among_the_cancelled() -> None:
    run = a_run()
    run.exchanges.append(exchange("e", 1.0, 2.0, outcome=Outcome.CANCELLED, error="superseded"))
    found = summarise(run)
    assert (found["cancelled"], found["errors"]) == (2, 1)
    assert found["cancelled_in"] == {"before the headers": 1, "superseded": 1}


def a_run() -> Run:
    """Two answers of three tokens each, a hang-up at 4 s whose computation lasts until 4.5 s, and a failure."""
    times = {"token_at": [1.5, 1.6, 1.8], "completion_tokens": 3, "outcome": Outcome.OK}
    return Run(
        "mix",
        {"plan": {"percent": 25.0}},
        began_at=1.0,
        ended_at=6.0,
        exchanges=[
            exchange("a", 1.0, 2.0, **times),
            exchange("b", 1.0, 3.0, **times),
            exchange("c", 3.0, 4.0, outcome=Outcome.CANCELLED),
            exchange("d", 5.0, 6.0, outcome=Outcome.ERROR, error="http_429"),
        ],
        stops={"c": Stop(0.5, 0.4)},
        cpu=[CpuSample(1.0, 0.0), CpuSample(4.0, 3.0), CpuSample(4.5, 3.5), CpuSample(6.0, 3.5)],
    )


def test_a_summary_counts_endings_by_kind() -> None:
    found = summarise(a_run())
    assert (found["requests"], found["ok"], found["cancelled"], found["errors"]) == (4, 2, 1, 1)
    assert found["errors_by_kind"] == {"http_429": 1}
    assert found["cancelled_in"] == {"before the headers": 1}


def test_goodput_is_tokens_of_successes_over_time() -> None:
    assert summarise(a_run())["goodput_tokens_per_s"] == pytest.approx(6 / 5)


def test_latencies_are_those_of_successes_only() -> None:
    found = summarise(a_run())
    assert found["ttft_ms"]["n"] == found["latency_ms"]["n"] == 2
    assert found["ttft_ms"]["p50"] == pytest.approx(500)
    assert found["itl_ms"]["n"] == 4
    assert found["latency_ms"]["max"] == pytest.approx(2000)


def test_cpu_is_told_apart_by_whether_anybody_waited() -> None:
    server = summarise(a_run())["server"]
    assert server["cpu_s"] == pytest.approx(3.5)
    assert server["idle_cpu_s"] == pytest.approx(0.5)
    assert server["cpu_after_leaving_share"] == pytest.approx(0.4 / 3.5)
    assert server["cancel_latency_ms"]["max"] == pytest.approx(500)
    assert server["cpu_s_per_1000_good_tokens"] == pytest.approx(1000 * 3.5 / 6)


def test_the_document_has_everything_and_is_json(tmp_path: Any) -> None:
    run = a_run()
    document = as_json([run], server={"url": "u"}, options={"seed": 1}, prompts="tokenize")
    write_json(document, tmp_path / "found.json")
    read = json.loads((tmp_path / "found.json").read_text())
    assert read["schema"] == SCHEMA
    assert set(read) == {
        "schema", "tool", "version", "written", "command", "machine", "load_average", "server", "options",
        "prompts_counted_by", "runs",
    }  # fmt: skip
    assert set(read["machine"]) == {"cpu", "cores", "memory_gib", "system", "python"}
    [told] = read["runs"]
    assert set(told) == {"scenario", "options", "began_at", "seconds", "summary", "exchanges", "cpu"}
    assert [entry["outcome"] for entry in told["exchanges"]] == ["ok", "ok", "cancelled", "error"]
    first, _, cut, _ = told["exchanges"]
    assert (first["began_at"], first["ended_at"], first["token_at"]) == (0.0, 1.0, [0.5, 0.6, 0.8])
    assert cut["stop"] == {"seconds": 0.5, "cpu_seconds": 0.4}
    assert told["cpu"][-1] == [5.0, 3.5]
