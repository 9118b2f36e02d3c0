"""The screen as text: what it shows, that it fits, and that nothing in it is obeyed."""

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pyllmcancel.top.client import Reading, ServerError, metrics_of
from pyllmcancel.top.view import View, draw
from tests.top.stage import METRICS, Fields, cancelled, entry

HOSTILE = "\x1b]0;owned\x07[red]x[/red]\r\n\u202e" + "\u6771" * 200
BUSY = (
    entry("agent-main", session="agent", prompt_tokens=600, prompt_tokens_done=600, max_tokens=None),
    entry("key-2", supersede="user me"),
    entry("queued-0", status="waiting", phase="waiting", replica="two"),
    cancelled("key-1", "superseded", 4.1, superseded_by="key-2"),
    cancelled("paste", "disconnect", 1.9),
    entry("broken", status="error", finish_reason="error", error="no room"),
    entry("done", status="finished", finish_reason="stop"),
)
ROWS = ("agent-main decode 600/600 + 13 1.5 s session agent", "> key-2 decode 100/100 + 13/64 1.5 s key user me")


def reading(*entries: Fields, metrics: str = METRICS, moment: float = 0.0) -> Reading:
    return Reading(list(entries), *metrics_of(metrics), [], moment)


def screen(view: View, width: int = 100, n_rows: int | None = 20) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(draw(view, width, n_rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def line_with(text: str, lines: list[str]) -> str:
    (found,) = [line for line in lines if text in line]
    return found


def test_a_busy_server() -> None:
    earlier = reading(metrics=METRICS.replace("1000.0", "900.0").replace(" 500.0", " 480.0"), moment=-2.0)
    lines = screen(View("http://here", reading(*BUSY), earlier, selected=(None, "", "key-2")))
    assert lines[0].rstrip() == "pyllmcancel 1.2.3 small-model  http://here"
    assert lines[1].rstrip() == "decode 10.0 tokens/s  prefill 50.0 tokens/s  slots 2/4  cells 947/4,096  queue 1"
    assert lines[2].rstrip() == "cancels 2: p50 3.0 ms, max 4.1 ms  wasted 538 tokens  saved 5,031 tokens"
    assert " ".join(line_with("agent-main", lines).split()) == ROWS[0]
    assert " ".join(line_with("> ", lines).split()) == ROWS[1]
    assert line_with("queued-0", lines).split()[1] == "waiting"
    assert "on two" in line_with("queued-0", lines)
    assert "superseded by key-2" in line_with("key-1", lines)
    assert "cancelled: disconnect" in line_with("paste", lines)
    assert "1.9 ms" in line_with("paste", lines)
    assert "failed: no room" in line_with("broken", lines)
    assert "stop" in line_with("done", lines)
    assert "q quit" in lines[-1]


@pytest.mark.parametrize("width", [40, 72, 80, 130])
def test_names_of_others_neither_command_the_terminal_nor_break_a_line(width: int) -> None:
    hostile = entry(HOSTILE, session=HOSTILE, supersede=HOSTILE)
    failed = entry("failed", status="error", finish_reason="error", error=HOSTILE)
    lines = screen(View("http://here", reading(hostile, failed), message="x" * 500), width)
    assert len(lines) == 3 + 3 + 2
    assert all(line.isprintable() and cell_len(line) <= width for line in lines)


def test_the_selected_request_is_among_the_rows_that_fit() -> None:
    many = [entry(f"r{i}") for i in range(100)]
    lines = screen(View("http://here", reading(*many), selected=(None, "", "r70")), n_rows=5)
    assert len(lines) == 4 + 5 + 2
    assert line_with("> ", lines).split()[1] == "r70"


def test_a_key_that_may_not_read_figures_sees_its_requests() -> None:
    lines = screen(View("http://here", Reading(list(BUSY), {}, [], ["two: gone"], 0.0)))
    assert lines[0].rstrip() == "pyllmcancel   two: gone"
    assert lines[2].rstrip() == "cancels 2: p50 3.0 ms, max 4.1 ms"
    line_with("agent-main", lines)


@pytest.mark.parametrize("strange", [{}, {"prompt_tokens": None}, {"seconds": "1"}, {"cancel_latency_ms": "x"}])
def test_an_entry_of_another_version_is_an_error_in_words(strange: dict[str, Any]) -> None:
    found = entry("x") | strange if strange else {}
    with pytest.raises(ServerError, match="is it a pyllmcancel of this version"):
        draw(View("http://here", reading(found)), 80, 20)
