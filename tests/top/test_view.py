"""The screen as text: what it shows, that it fits, and that nothing in it is obeyed."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from pyllmcancel.top.choices import Choices, Size, Times
from pyllmcancel.top.lanes import ASCII, BLOCKS
from pyllmcancel.top.replicas import Replicas
from pyllmcancel.top.screen import rendered
from pyllmcancel.top.state import State
from pyllmcancel.top.view import draw
from tests.top.events import EPOCH, Fields, added, busy_server, ended, entry, over, snapshot

NOW = EPOCH + 12
HOSTILE = "\x1b]0;owned\x07[red]x[/red]\r\n\u202e" + "\u6771" * 200


def screen(events: list[Fields], size: tuple[int, int | None] = (80, 24), choices: Choices | None = None) -> list[str]:
    state = State()
    for event in events:
        state.apply(event)
    assert state.not_understood == 0
    shown = choices or Choices(url="http://127.0.0.1:8000", link="connected", lost=False)
    return [line.plain for line in draw(Replicas([state]), shown, Times(NOW, NOW), Size(*size))]


def line_with(text: str, lines: list[str]) -> str:
    (found,) = [line for line in lines if text in line]
    return found


def test_a_busy_server_on_the_smallest_terminal() -> None:
    lines = screen(busy_server(), choices=Choices(selected=("", "", "key-2"), glyphs=ASCII))
    assert lines[0].startswith("pyllmcancel 1.2.3  small-model")
    assert lines[1] == "decode 10.3 tokens/s  prefill 27 tokens/s  slots 2/4  queue 2  cells 947/4,096  "
    assert lines[2].rstrip() == "cancels 3 in 5 min: p50 3.1 ms, max 4.1 ms  wasted 538  saved 5,031 tokens"
    assert lines[5].rstrip().endswith("########X................")
    assert lines[6].rstrip().endswith("#==X#==X#===:::  key-2")
    assert line_with("> ", lines).split()[:4] == [">", "key-2", "decode", "40/40"]
    assert line_with("queued-0", lines).split()[1] == "waiting"
    assert "key user me completion: newest is key-2" in line_with("newest is", lines)
    assert "cancelled: disconnect" in line_with("paste", lines)
    assert "stopped in 1.9 ms" in line_with("paste", lines)
    assert "q quit" in lines[-1]


@pytest.mark.parametrize("width", [72, 80, 109, 110, 116, 130])
def test_the_last_column_is_never_cut(width: int) -> None:
    events = [*busy_server(), added(entry("long", session=width * "s"))]
    lines = screen(events, (width, 40))
    assert line_with("paste", lines).rstrip().endswith(" 3.9 s ago")
    assert line_with("long", lines).rstrip().endswith("…")


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (40, 10), (20, 6), (3, 2), (1, 1), (80, 5)])
def test_it_has_exactly_the_terminals_size(size: tuple[int, int]) -> None:
    names = [entry(HOSTILE + str(i), session=HOSTILE, supersede=HOSTILE, times={"arrived": 11.0}) for i in range(100)]
    gone = [ended(over(HOSTILE + str(i), 11.0, cancel_reason=HOSTILE, cancel_latency_ms=1e9)) for i in range(30)]
    for choices in (None, Choices(help=True, lost=True, link=HOSTILE, message=HOSTILE)):
        lines = screen([*busy_server(), *map(added, names), *gone], size, choices)
        assert len(lines) == size[1]
        assert max(map(cell_len, lines)) <= size[0]


@pytest.mark.parametrize("field", ["id", "owner", "session", "parent_session", "supersede", "superseded_by", "error"])
def test_names_from_the_network_cannot_move_the_cursor_nor_paint(field: str) -> None:
    bad = entry("r", times={"arrived": 11.0}, session="s") | {field: HOSTILE}
    gone = over("e", 11.0, cancel_reason="superseded", superseded_by="x") | {field: HOSTILE}
    failed = over("f", 11.0, finish_reason="error", status="error") | {field: HOSTILE}
    model = {"id": HOSTILE, "description": HOSTILE, "memory": "attention"}
    lines = screen([snapshot(gone, failed, model=model), added(bad)], (200, 40))
    assert all(line.isprintable() for line in lines)
    assert field == "owner" or "[red]x[/red]" in "\n".join(lines)


def test_what_does_not_fit_is_counted() -> None:
    lines = screen([snapshot(*(entry(f"r-{i}") for i in range(50)))])
    n_shown = sum("  r-" in line for line in lines)
    assert f"({50 - n_shown} more)" in line_with("Requests", lines)


def test_a_selected_request_is_always_among_the_shown() -> None:
    requests = [entry(f"r-{i}") for i in range(50)]
    for i in (0, 25, 49):
        lines = screen([snapshot(*requests)], choices=Choices(selected=("", "", f"r-{i}")))
        assert line_with("> ", lines).split()[1] == f"r-{i}"


def test_without_a_height_everything_is_shown() -> None:
    lines = screen([snapshot(*(entry(f"r-{i}") for i in range(50)))], (80, None))
    assert sum("  r-" in line for line in lines) == 50
    assert "more)" not in "\n".join(lines)


def test_an_owner_sees_that_there_may_be_others() -> None:
    lines = screen([snapshot(all_owners=False, stats=None)])
    assert "this key's owner only" in lines[2]
    assert "wasted" not in lines[2]


def test_a_lost_connection_is_told_first() -> None:
    lines = screen(busy_server(), (60, 24), Choices(url="http://x", lost=True, link="connection refused: trying again"))
    assert lines[0].endswith("connection refused: trying again")


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
def test_without_colours_there_are_no_colours_and_shapes_still_tell(
    monkeypatch: pytest.MonkeyPatch, glyphs: dict[object, str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    state = State()
    for event in busy_server():
        state.apply(event)
    choices = Choices(glyphs=glyphs)  # type: ignore[arg-type]
    text = "".join(rendered(line, console) for line in draw(Replicas([state]), choices, Times(NOW, NOW), Size(80, 24)))
    assert not any(f"\x1b[{code}" in text for code in ("3", "1;3", "2;3", "9"))
    assert all(glyph in text for glyph in glyphs.values())


def loaded(*names: str) -> dict[str, Any]:
    """The list of a front's models, of which these serve."""
    entries = [{"id": name, "replica": name, "status": {"value": "loaded"}} for name in names]
    return {"type": "models", "models": [*entries, {"id": "x", "replica": "x", "status": {"value": "unloaded"}}]}


def test_replicas_that_do_not_serve_any_more_are_forgotten() -> None:
    replicas = Replicas()
    replicas.apply(loaded("old", "b"))
    assert not replicas.complete
    for name in ("old", "b"):
        replicas.apply(snapshot(entry(f"on-{name}", status="running")) | {"replica": name})
    assert replicas.complete
    replicas.apply(loaded("b", "c"))
    assert (list(replicas.states), replicas.complete) == (["b"], False)
    for hostile in ({"models": [1, {"status": 1}, {"replicas": [2, {}]}]}, {"models": 5}, {}):
        replicas.apply({"type": "models"} | hostile)
    assert not replicas.states


def test_several_replicas_are_named_each_request_by_its_own_and_one_is_shown_in_full() -> None:
    replicas = Replicas()
    for name in ("one", "two"):
        replicas.apply(snapshot(entry(f"on-{name}", status="running", phase="decode", slots=[0])) | {"replica": name})
        replicas.apply(ended(over(f"over-{name}", 1.0)) | {"replica": name})
    replicas.apply(added(entry("nowhere")) | {"replica": "four"})  # without a snapshot it says nothing

    def lines() -> list[str]:
        return [line.plain.rstrip() for line in draw(replicas, Choices(), Times(NOW, NOW), Size(100, 30))]

    assert lines()[3].startswith("one 1/4 slots, 0 waiting  two 1/4 slots, 0 waiting")
    assert not any("\x1b" in line for line in lines())
    assert line_with("Slots of", lines()).startswith("Slots of one")
    for name in ("one", "two"):
        rows = [line for line in lines() if f"on {name}" in line]
        assert [f"on-{name}" in rows[0], f"over-{name}" in rows[1]] == [True, True]
    replicas.choose_next()
    assert line_with("Slots of", lines()).startswith("Slots of two")
    replicas.apply(loaded("one"))
    assert line_with("Slots of", lines()).startswith("Slots of one")
    assert replicas.find(("two", "", "on-two")) is None
    assert not any("nowhere" in line for line in lines())
