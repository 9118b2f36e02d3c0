"""Percentiles, and what a load comes to: the figures, the table, the document, and the plots with their words."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from bench.report import plots
from pyllmcancel.bench.client import Ask, Exchange, Outcome, Target
from pyllmcancel.bench.load import LoadOptions, Run
from pyllmcancel.bench.percentiles import distribution, percentile
from pyllmcancel.bench.report import SCHEMA, as_json, cut_phase, rows, show, summarise, write_json
from pyllmcancel.bench.server_truth import Stop
from pyllmcancel.bench.workbench import Workbench


def exchange(name: str, began: float, ended: float, **changed: Any) -> Exchange:
    made = Exchange(Ask(prompt="x", max_tokens=4, request_id=name), began_at=began, sent_at=began, ended_at=ended)
    for field, value in changed.items():
        setattr(made, field, value)
    return made


def a_run() -> Run:
    """Two answers of three tokens each, a hang-up at 4 s whose computation lasts until 4.5 s, and a failure."""
    times = {"token_at": [1.5, 1.6, 1.8], "completion_tokens": 3, "outcome": Outcome.OK}
    exchanges = [
        exchange("a", 1.0, 2.0, **times),
        exchange("b", 1.0, 3.0, **times),
        exchange("c", 3.0, 4.0, outcome=Outcome.CANCELLED),
        exchange("d", 5.0, 6.0, outcome=Outcome.ERROR, error="http_429"),
    ]
    return Run(chosen=1, began_at=1.0, seconds=5.0, exchanges=exchanges, stops={"c": Stop(0.5, 0.4)}, cpu=3.5)


def printed(run: Run) -> str:
    console = Console(file=io.StringIO(), width=200)
    show(summarise(run), console)
    return console.file.getvalue()


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


@pytest.mark.parametrize(
    ("changed", "phase"),
    [
        ({"sent_at": None}, "sending"),
        ({}, "before the headers"),
        ({"first_byte_at": 1.1}, "before the first token"),
        ({"first_byte_at": 1.1, "token_at": [1.2]}, "streaming"),
        ({"error": "superseded"}, "superseded"),
    ],
)
def test_a_hang_up_is_told_by_how_far_the_answer_had_come(changed: dict[str, Any], phase: str) -> None:
    assert cut_phase(exchange("a", 1.0, 2.0, **changed)) == phase


def test_figures_are_those_of_complete_answers_and_of_the_process() -> None:
    found = summarise(a_run())
    assert (found["requests"], found["ok"], found["cancelled"], found["errors"]) == (4, 2, 1, 1)
    assert (found["errors_by_kind"], found["cancelled_in"]) == ({"http_429": 1}, {"before the headers": 1})
    assert found["goodput_tokens_per_s"] == pytest.approx(6 / 5)
    assert found["ttft_ms"]["n"] == found["latency_ms"]["n"] == 2
    assert found["ttft_ms"]["p50"] == pytest.approx(500)
    assert found["itl_ms"]["n"] == 4
    assert found["latency_ms"]["max"] == pytest.approx(2000)
    assert found["cpu_after_leaving_share"] == pytest.approx(0.4 / 3.5)
    assert found["cancel_latency_ms"]["max"] == pytest.approx(500)


def test_the_table_has_the_figures_that_were_measured() -> None:
    text = printed(a_run())
    for words in ("hang-up to rest, ms", "http_429", "an HTTP error", "tokens of complete answers", "11.43 %"):
        assert words in text
    run = a_run()
    run.stops.clear()
    assert "needs --concurrency 1" in printed(run)
    run.cpu = None
    names = [name for name, *_ in rows(summarise(run))]
    assert "hang-up to rest, ms" not in names
    assert "CPU, s" not in names


def test_a_load_of_which_nothing_was_cut_is_warned_about() -> None:
    assert "none was" not in printed(a_run())
    run = a_run()
    run.exchanges = run.exchanges[:2]
    text = printed(run)
    assert "1 requests were to be cut, and none was" in text
    assert "--delay" in text


def test_the_document_has_everything_and_is_json(tmp_path: Path) -> None:
    client, prompts = SimpleNamespace(target=Target(url="u")), SimpleNamespace(how="usage")
    bench = cast("Workbench", SimpleNamespace(client=client, prompts=prompts))
    write_json(as_json(bench, LoadOptions(), a_run()), tmp_path / "found.json")
    read = json.loads((tmp_path / "found.json").read_text())
    assert (read["schema"], read["server"]["url"], read["options"]["seed"]) == (SCHEMA, "u", 42)
    assert set(read["machine"]) == {"cpu", "cores", "memory_gib", "system", "python"}
    assert [entry["outcome"] for entry in read["exchanges"]] == ["ok", "ok", "cancelled", "error"]
    first, _, cut, _ = read["exchanges"]
    assert (first["began_at"], first["ended_at"], first["token_at"]) == (0.0, 1.0, [0.5, 0.6, 0.8])
    assert cut["stop"] == {"seconds": 0.5, "cpu_seconds": 0.4}


# -- plots -------------------------------------------------------------------------------------------------------------


def lines_of(axes: Axes) -> list[list[tuple[float, float]]]:
    points = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]  # type: ignore[arg-type]
    return [line for line in points if line]


def drawn(**values: list[float]) -> Figure:
    return plots.distribution(values, title="T", axis="time", counted="cancels", note="Words.")


def test_a_distribution_climbs_from_nothing_to_all() -> None:
    axes = drawn(a=[20.0, 10.0], b=[1000.0], none=[]).axes[0]
    assert lines_of(axes) == [[(10.0, 0.0), (10.0, 50.0), (20.0, 100.0)], [(1000.0, 0.0), (1000.0, 100.0)]]
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["a: p50 15.0 ms, max 20.0 ms (n = 2)", "b: p50 1,000 ms, max 1,000 ms (n = 1)"]


def test_where_nearly_all_are_nothing_the_rest_is_what_is_shown() -> None:
    values = [0.0] * 94 + [0.005] + [2.0, 3.0, 4.0, 5.0, 6.0]
    axes = drawn(a=values).axes[0]
    assert axes.get_ylim()[0] == 90
    assert axes.get_ylabel() == "share of cancels, % (from 90 %)"
    assert axes.get_xlim() == (0.0, 10.0)
    assert lines_of(axes)[-1] == [(0.0, 95.0)]
    assert axes.get_legend_handles_labels()[1] == ["a: 95 % are 0, p50 0 ms, p99 5.0 ms (n = 100)"]


@pytest.mark.parametrize("values", [[0.0], [0.0] * 50, [0.0, 7.0], [5.0], [0.01, 100_000.0]])
def test_whatever_was_measured_it_lies_inside_and_the_ends_are_labelled(values: list[float]) -> None:
    axes = drawn(a=values).axes[0]
    low, high = axes.get_xlim()
    assert low <= min(values) <= max(values) <= high
    assert len(axes.get_xticks()) >= 2
