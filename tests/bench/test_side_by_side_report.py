"""The report of a side-by-side run, from parts written by hand."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.report.__main__ import report
from bench.report.aims import AIMS, Verdict
from bench.report.pictures import draw_all
from bench.report.results import Results, seconds
from bench.report.sections import SECTIONS, Row, at, markdown, share
from bench.side_by_side.measurements import MEASUREMENTS

RUN: dict[str, Any] = {
    "machine": {"cpu": "Some CPU", "cores": 2, "memory_gib": 8.0, "system": "Linux 6", "python": "3.11.7"},
    "model": "m.gguf",
    "model_mib": 325.6,
    "threads": 2,
    "effort": 1.0,
    "commands": ["python -m bench.side_by_side --model=/some/where/m.gguf --out build/bench --only a"],
    "peers": {
        "pyllmcancel": {"version": "0.1.0", "notes": "defaults"},
        "llama-server": {"version": "version: 0", "notes": "defaults"},
    },
}


def part(measurement: str, peer: str, figures: dict[str, Any], number: int = 1) -> dict[str, Any]:
    common = {"began": f"2026-01-0{number}", "commit": "0123456789abcdef", "dirty": False}
    return {"measurement": measurement, "peer": peer, "round": number, "figures": figures, **common}


def results(*parts: dict[str, Any]) -> Results:
    return Results(RUN, parts)


def verdict(key: str, found: Results) -> Verdict:
    return next(aim for aim in AIMS if aim.key == key).judge(found)[0]


def stops(ours: list[float], theirs: list[float]) -> Results:
    return results(
        part("stop-then-next", "pyllmcancel", {"stop_to_first_token": ours}),
        part("stop-then-next", "llama-server", {"stop_to_first_token": theirs}),
    )


STOP_ROW = Row("first token", at("stop-then-next", "stop_to_first_token"), seconds, "less")


def test_values_of_all_rounds_are_taken_together() -> None:
    found = results(
        part("m", "pyllmcancel", {"a": {"b": [1.0, None, 2.0]}}, 1), part("m", "pyllmcancel", {"a": {"b": 6.0}}, 2)
    )
    assert found.values("m", "pyllmcancel", "a", "b") == [1.0, 2.0, 6.0]
    assert found.median("m", "pyllmcancel", "a", "b") == 2.0


def test_a_table_has_a_column_for_each_peer_and_the_ratio() -> None:
    assert markdown(stops([0.1], [12.0]), [STOP_ROW]) == [
        "|  | pyllmcancel | llama-server | better than llama-server |",
        "| --- | ---: | ---: | ---: |",
        "| first token | 100 ms | 12.0 s | 120 times |",
    ]


def test_a_share_is_of_the_sums() -> None:
    found = results(
        part("m", "pyllmcancel", {"part": 1.0, "whole": 10.0}, 1),
        part("m", "pyllmcancel", {"part": 2.0, "whole": 30.0}, 2),
    )
    assert share("m", "part", "whole")(found, "pyllmcancel") == 3 / 40


def test_an_aim_is_met_missed_or_not_measured() -> None:
    assert verdict("stop-then-next", stops([0.1, 0.2, 0.3], [10.0, 11.0, 30.0])) is Verdict.MET
    assert verdict("stop-then-next", stops([0.3], [11.0])) is Verdict.MISSED
    assert verdict("stop-then-next", results()) is Verdict.UNKNOWN


def speeds(ours: dict[str, Any], theirs: dict[str, Any]) -> Results:
    found = {"pyllmcancel": ours, "llama-server": theirs}
    return results(*(part(f"throughput-{n}", peer, found[peer]) for n in (1, 4, 8) for peer in found))


def test_less_time_between_tokens_is_better_and_more_tokens_are() -> None:
    found = speeds({"itl": [0.05], "tokens_per_second": 20.0}, {"itl": [0.06], "tokens_per_second": 21.0})
    assert verdict("itl", found) is Verdict.MET
    assert verdict("tokens", found) is Verdict.MISSED
    assert verdict("ttft", found) is Verdict.UNKNOWN


def test_a_few_long_gaps_miss_the_aim_for_the_mean_alone() -> None:
    found = speeds({"itl": [0.05, 0.05, 0.5], "tpot": [0.2]}, {"itl": [0.06, 0.06, 0.06], "tpot": [0.06]})
    assert verdict("itl", found) is Verdict.MET
    assert verdict("tpot", found) is Verdict.MISSED


@pytest.mark.parametrize(("ours", "theirs", "expected"), [(0.1, 0.0, Verdict.MISSED), (0.0, 0.1, Verdict.UNKNOWN)])
def test_no_aim_is_met_by_a_gap_of_zero(ours: float, theirs: float, expected: Verdict) -> None:
    assert verdict("itl", speeds({"itl": [ours]}, {"itl": [theirs]})) is expected


class Asked(Results):
    names: ClassVar[set[str]] = set()

    def figures(self, measurement: str, peer: str) -> list[dict[str, Any]]:
        self.names.add(measurement)
        return Results.figures(self, measurement, peer)


def test_the_report_asks_for_all_measurements_by_their_names(tmp_path: Path) -> None:
    asked = Asked({}, [part("none", peer, {}) for peer in ("pyllmcancel", "llama-server")])
    for section in SECTIONS:
        markdown(asked, section.rows)
    for aim in AIMS:
        aim.judge(asked)
    draw_all(asked, tmp_path)
    assert asked.names == set(MEASUREMENTS)


def test_half_a_measurement_meets_no_aim() -> None:
    good = {"latency": [0.005, 0.006]}
    some = results(part("cancel-latency", "pyllmcancel", {"prefill, streaming": good}))
    assert verdict("cancel-latency", some) is Verdict.UNKNOWN
    late = results(part("cancel-latency", "pyllmcancel", {"prefill, streaming": {"latency": [0.005, 0.050]}}))
    assert verdict("cancel-latency", late) is Verdict.MISSED


def test_a_hang_up_that_was_never_noticed_misses_the_aim() -> None:
    def queued(never: int) -> Results:
        return results(part("queued-hang-up", "pyllmcancel", {"noticed_after": [0.01], "never_noticed": never}))

    assert verdict("queued", queued(0)) is Verdict.MET
    assert verdict("queued", queued(1)) is Verdict.MISSED


def test_one_error_in_one_run_of_aiperf_misses_the_aim() -> None:
    runs = ("none", "10-percent", "50-percent", "30-percent")
    good = [part(f"aiperf-{name}", "pyllmcancel", {"errors": 0}) for name in runs]
    assert verdict("aiperf", results(*good)) is Verdict.MET
    assert verdict("aiperf", results(*good[:3])) is Verdict.UNKNOWN
    assert verdict("aiperf", results(*good, part("aiperf-none", "pyllmcancel", {"errors": 1}, 2))) is Verdict.MISSED


def test_the_report_names_machine_commit_and_what_was_tried() -> None:
    text = report(stops([0.3], [11.0]), {}, {"stop-then-next": "smaller steps", "goodput": "nothing"})
    assert "Some CPU, 2 cores" in text
    assert "\npython -m bench.side_by_side --model=m.gguf --out build/bench --only a\n" in text
    assert "0123456789ab" in text
    assert "37 times shorter" in text
    assert "smaller steps" in text
    assert "nothing" not in text.split("Where one was missed:")[1].split("##")[0]
    assert "a trial" not in text
