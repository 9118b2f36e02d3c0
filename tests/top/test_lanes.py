"""Columns of the lanes say what happened in their quarter of a second."""

from __future__ import annotations

from pyllmcancel.top.lanes import ASCII, Axis, drawn, lanes, legend
from pyllmcancel.top.state import State
from tests.top.events import EPOCH, Fields, added, admitted, cancelled, ended, entry, over, part, snapshot, step

FROM_THE_BEGINNING = snapshot(epoch=EPOCH - 0.001)


def drawn_lanes(now: float, *events: Fields, heard: float | None = None, width: int = 12) -> list[str]:
    state = State()
    for event in (FROM_THE_BEGINNING, *events):
        state.apply(event)
    axis = Axis.until(EPOCH + now, width)
    found = lanes(state, range(2), axis, EPOCH + (now if heard is None else heard))
    return [drawn(row, ASCII).plain for row in found]


def test_phases_have_their_shapes_and_an_unfinished_step_is_held() -> None:
    steps = [step(0.1, 0.9, part("r", 0, "prefill", 64)), step(1.0, 1.6, part("r", 0, "decode", 10))]
    asked = added(entry("r", times={"arrived": 0.1}))
    assert drawn_lanes(2.2, asked, admitted("r", 0.1, 0), *steps) == ["???####===::", "???........."]


def test_an_aborted_step_is_cut_off_at_its_end() -> None:
    assert drawn_lanes(2.2, step(0.1, 1.1, part("r", 1, "prefill", 64), status="aborted"))[1] == "???####X...."


def test_a_cancel_between_two_steps_is_cut_off_too() -> None:
    gone = over("r", 1.1, cancel_reason="explicit", cancel_latency_ms=1.0, times={"admitted": 0.1, "ended": 1.1})
    events = [added(entry("r")), admitted("r", 0.1, 0), step(0.1, 1.0, part("r", 0, "decode", 9))]
    assert drawn_lanes(2.2, *events, cancelled("r", 1.09), ended(gone))[0] == "???====X...."


def test_what_was_not_seen_is_not_shown_as_idle() -> None:
    assert drawn_lanes(2.2, heard=1.2) == ["???.....????"] * 2
    restarted = snapshot(at=0.5, boot="b2", epoch=EPOCH + 1)
    assert drawn_lanes(2.2, step(0.1, 0.4, part("r", 0, "decode", 9)), restarted)[0] == "???==?????.."


def test_a_column_stands_still_while_time_goes_on() -> None:
    steps = [step(0.3, 0.4, part("r", 0, "decode", 1))]
    assert drawn_lanes(2.0, *steps) == drawn_lanes(2.2, *steps)
    assert drawn_lanes(2.3, *steps)[0] == drawn_lanes(2.0, *steps)[0][1:] + "."


def test_steps_of_slots_that_are_not_there_or_not_told_are_passed_over() -> None:
    parts = part("r", 7, "decode", 1), part("s", None, "decode", 1)
    assert drawn_lanes(1.0, step(0.5, 0.6, *parts)) == drawn_lanes(1.0)


def test_the_legend_has_every_shape_once() -> None:
    text = legend(ASCII).plain
    assert all(text.count(f"{glyph} ") == 1 for glyph in ASCII.values())
    assert len(set(ASCII.values())) == len(ASCII)
