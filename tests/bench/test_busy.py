"""The runs beside busy programs: programs that end, and a table of medians and ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.busy import busy_programs, contenders, ratios, table, watching_others
from pyllmcancel.bench.server_truth import cpu_seconds


def entry(server: str, speed: float, *, load: int = 2, cancel: float | None = 0.01) -> dict[str, Any]:
    return {
        "model": "m.gguf",
        "load": load,
        "server": server,
        "tokens_per_second": speed,
        "ttft": 1.0 / speed,
        "cancel_in_answer": 0.02,
        "cancel_in_prompt": cancel,
    }


def row(text: str, title: str, name: str) -> list[str]:
    """Cells of the row `name` in the part with that title."""
    (part,) = [part for part in text.split("\n\n") if part.startswith(f"| {title} ")]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {name} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_busy_programs_run_and_have_ended_afterwards() -> None:
    with busy_programs(2) as pids:
        assert len(pids) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            cpu_seconds(pid)


def test_each_server_is_measured_with_its_own_choice_of_threads_and_with_fixed_ones() -> None:
    assert [(one.peer, one.threads) for one in contenders(2)] == [
        ("pyllmcancel", 0),
        ("pyllmcancel", 1),
        ("pyllmcancel", 2),
        ("llama-server", -1),
    ]


def test_on_more_cores_half_of_them_are_tried_too() -> None:
    assert [one.threads for one in contenders(16)] == [0, 1, 8, 16, -1]


def test_the_table_has_the_median_of_all_turns() -> None:
    found = table([entry("defaults", speed) for speed in (5.0, 1.0, 9.0)])
    assert row(found, "decode, tokens/s", "beside 2")[0] == "5.0"


def test_the_table_has_a_row_for_each_load() -> None:
    found = table([entry("defaults", 5.0, load=8), entry("defaults", 7.0, load=0)])
    assert row(found, "decode, tokens/s", "beside 0")[0] == "7.0"
    assert row(found, "decode, tokens/s", "beside 8")[0] == "5.0"


def test_what_was_not_seen_is_no_part_of_a_median() -> None:
    found = table([entry("defaults", 5.0, cancel=None), entry("defaults", 5.0, cancel=0.03)])
    assert row(found, "cancel in a prompt, ms", "beside 2")[0] == "30"


@pytest.mark.parametrize(("better", "expected"), [(max, ["0.50", "2.00"]), (min, ["0.25", "0.50"])])
def test_a_ratio_above_one_is_in_our_favour(better: Any, expected: list[str]) -> None:
    assert ratios({"defaults": 4.0, "--threads 1": 8.0, "--threads 2": 1.0, "llama-server": 2.0}, better) == expected


def test_who_sends_no_second_token_has_no_ratio() -> None:
    assert ratios({"defaults": 4.0, "--threads 1": 0.0, "llama-server": 0.0}, max) == ["-", "-"]


def test_without_the_others_there_are_no_ratios() -> None:
    assert ratios({"defaults": 4.0}, max) == ["", ""]


def test_what_programs_other_than_those_under_measurement_take_is_told() -> None:
    with watching_others([]) as conditions:
        pass
    assert conditions["others"] >= 0.0
