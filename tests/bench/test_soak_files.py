"""The verdict on a long soak's files: it passes a good soak, and sees each thing that can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.scenarios.soak_files import judge_files
from bench.scenarios.storm.stage import Visit

ENGINE = "02:00:00.000 INFO    pyllmcancel.engine: request"
PAGE = "".join(f"{name}: flat, +1.0% in the second half\n" for name in ("heap", "nodes", "listeners"))


@pytest.fixture
def soak(tmp_path: Path) -> Path:
    """Two requests, one of which was cancelled, and memory that stays within a tenth of a MiB."""
    visits = [
        Visit("north-1", "stays", "chat", stays=True),
        Visit("north-2", "by id", "chat", ("explicit",)),
        Visit("north-3", "unsent", "chat", (None,)),
    ]
    (tmp_path / "visits.jsonl").write_text("".join(json.dumps(asdict(visit)) + "\n" for visit in visits))
    samples = [
        {"at": 10.0 * i, "time": "now", "resident": {"north": 200.0 + i % 2 / 10}, "used": 3.0 * i} for i in range(40)
    ]
    idle = {"gauges": {"slots_used": 0.0}, "stores": {"events_kept": 20_000.0}, "resident": 200.0}
    samples.append({"idle": "north", "at": 400.0} | idle)
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    (tmp_path / "north.log").write_text(
        f"{ENGINE} north-1 added, waiting 1, running 0\n{ENGINE} north-1 finished (length): 9 prompt tokens\n"
        f"{ENGINE} north-2 added, waiting 1, running 0\n{ENGINE} north-2 cancelled (explicit) in decode after 3\n"
    )
    (tmp_path / "page.txt").write_text(PAGE)
    return tmp_path


def test_a_good_soak_passes(soak: Path) -> None:
    report = judge_files(soak)
    assert report.passed, str(report)
    assert "north: events_kept" in str(report)


def test_lines_that_were_cut_are_left_out(soak: Path) -> None:
    for name in ("visits.jsonl", "samples.jsonl"):
        with (soak / name).open("a") as file:
            file.write('{"id": "nor')
    assert judge_files(soak).passed


def test_a_soak_that_fills_its_stores_has_not_passed(soak: Path) -> None:
    for name in ("samples.jsonl", "page.txt"):
        (soak / name).unlink()
    report = judge_files(soak)
    failing = {check.text for check in report.checks if not check.passed}
    assert failing == {"memory was watched", "the page's memory is flat, and nothing went wrong in it"}


def wrong_answer(soak: Path) -> None:
    visit = Visit("north-1", "stays", "chat", stays=True, faults=["'a' instead of 'b'"])
    with (soak / "visits.jsonl").open("a") as file:
        file.write(json.dumps(asdict(visit)) + "\n")


def second_ending(soak: Path) -> None:
    (soak / "south.log").write_text(f"{ENGINE} north-1 cancelled (disconnect) in decode after 3\n")


def no_ending(soak: Path) -> None:
    (soak / "south.log").write_text(f"{ENGINE} req-unknown added, waiting 1, running 0\n")


def other_ending(soak: Path) -> None:
    log = soak / "north.log"
    log.write_text(log.read_text().replace("(explicit)", "(deadline)"))


def warning(soak: Path) -> None:
    (soak / "south.log").write_text("02:00:00.000 WARNING pyllmcancel.engine: a step has failed\n")


def growth(soak: Path) -> None:
    samples = [{"at": 10.0 * i, "time": "now", "resident": {"north": 200.0 + i}, "used": 3.0 * i} for i in range(40)]
    (soak / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def held_slot(soak: Path) -> None:
    with (soak / "samples.jsonl").open("a") as file:
        file.write(json.dumps({"idle": "north", "at": 410.0, "gauges": {"slots_used": 1.0}}) + "\n")


def page_that_grows(soak: Path) -> None:
    (soak / "page.txt").write_text(PAGE.replace("heap: flat", "heap: GROWS"))


def no_page(soak: Path) -> None:
    (soak / "page.txt").write_text("no Chromium\n")


SPOILED = (
    (wrong_answer, {"0 wrong: every client got the whole, right answer, or one error"}),
    (
        second_ending,
        {
            "every request is in one log once, with one ending of the right kind",
            "every request in a log was added once and ended once",
        },
    ),
    (no_ending, {"every request in a log was added once and ended once"}),
    (other_ending, {"every request is in one log once, with one ending of the right kind"}),
    (warning, {"no other warning, error or traceback in a log"}),
    (growth, {"north: memory is flat in the second half"}),
    (held_slot, {"no request, session, slot or cell is held by an idle server"}),
    (page_that_grows, {"the page's memory is flat, and nothing went wrong in it"}),
    (no_page, {"the page's memory is flat, and nothing went wrong in it"}),
)


@pytest.mark.parametrize(("spoil", "failing"), SPOILED, ids=[spoil.__name__ for spoil, _ in SPOILED])
def test_each_fault_fails_its_own_check(soak: Path, spoil: Callable[[Path], None], failing: set[str]) -> None:
    spoil(soak)
    report = judge_files(soak)
    assert {check.text for check in report.checks if not check.passed} == failing
