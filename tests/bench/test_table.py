"""The table says what was to be cut, what was cut, and what its rows mean."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console

from pyllmcancel.bench import table
from pyllmcancel.bench.command import column
from pyllmcancel.bench.summary import Figures, summarise
from tests.bench.test_plots import run_of


def summary_of(*kinds: str, chosen: int) -> Figures:
    run = run_of(*kinds)
    run.figures["chosen"] = chosen
    return summarise(run)


def printed(*summaries: Figures) -> str:
    console = Console(file=io.StringIO(), width=200)
    table.show(summaries, [f"run {number}" for number, _ in enumerate(summaries)], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_column_names_the_share_that_was_to_be_cut_and_the_share_that_was() -> None:
    run = run_of("answered", "answered", "hung up", "superseded")
    run.options["plan"] = {"percent": 50.0}
    assert column(run, summarise(run)) == "50 % asked, 25 % cut"
    assert column(run_of("answered"), summary_of("answered", chosen=0)) == "mix"


def test_cut_requests_and_those_that_ended_before_are_counted_apart() -> None:
    found: Iterator[tuple[str, str]] = (
        (row[0], row[1]) for row in table.rows([summary_of("answered", "hung up", "superseded", chosen=2)])
    )
    rows = dict(found)
    assert (rows["cancelled"], rows["  to be cut"], rows["  cut"]) == ("2", "2", "1")


def test_a_run_in_which_nothing_was_cut_is_warned_about() -> None:
    text = printed(summary_of("answered", "answered", chosen=2))
    assert "2 requests were to be cut, and none was" in text
    assert "--delay" in text
    for harmless in (summary_of("answered", chosen=0), summary_of("answered", "hung up", chosen=2)):
        assert "none was" not in printed(harmless)


def test_with_a_process_id_the_row_that_cannot_be_measured_says_what_it_needs() -> None:
    found = summary_of("answered", "hung up", chosen=1)
    assert "needs --pid and one client" in printed(found | {"server": {"cpu_s": 1.0}})


def test_the_rows_that_are_shown_are_explained_and_no_others() -> None:
    text = printed(summary_of("answered", "hung up", chosen=1))
    assert "goodput, tokens/s: tokens of complete answers" in text
    assert "needs --pid" not in text
