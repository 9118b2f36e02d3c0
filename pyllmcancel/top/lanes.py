"""The lanes of the slots: the last seconds of each slot, a column for each fraction of a second, by shape and
colour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from rich.text import Text

from pyllmcancel.top.request import Request
from pyllmcancel.top.state import State, Step

COLUMN = 0.25  # seconds


class Mark(IntEnum):
    """The mark of a column; if several things happened in it, the greatest mark."""

    IDLE = 0
    HELD = 1
    UNKNOWN = 2
    DECODE = 3
    PREFILL = 4
    CUT = 5


STYLES = {
    Mark.IDLE: "dim",
    Mark.HELD: "dim",
    Mark.DECODE: "green",
    Mark.PREFILL: "yellow",
    Mark.CUT: "bold red",
    Mark.UNKNOWN: "dim magenta",
}
WORDS = {
    Mark.PREFILL: "prefill",
    Mark.DECODE: "decode",
    Mark.CUT: "cut off",
    Mark.HELD: "held",
    Mark.IDLE: "idle",
    Mark.UNKNOWN: "not seen",
}
BLOCKS = {
    Mark.IDLE: "·",
    Mark.HELD: "░",
    Mark.DECODE: "▄",
    Mark.PREFILL: "█",
    Mark.CUT: "\N{BOX DRAWINGS LIGHT DIAGONAL CROSS}",
    Mark.UNKNOWN: "╌",
}
ASCII = {Mark.IDLE: ".", Mark.HELD: ":", Mark.DECODE: "=", Mark.PREFILL: "#", Mark.CUT: "X", Mark.UNKNOWN: "?"}
Glyphs = dict[Mark, str]


@dataclass(frozen=True, slots=True)
class Axis:
    """The columns. They end at whole multiples of `COLUMN`, so that past columns do not change while time passes."""

    last: int
    width: int

    @classmethod
    def until(cls, now: float, width: int) -> Axis:
        return cls(math.floor(now / COLUMN), width)

    @property
    def began(self) -> float:
        return (self.last - self.width + 1) * COLUMN

    def columns(self, began: float, ended: float) -> range:
        """Iterate over the columns that this time touches."""
        first = self.last - self.width + 1
        begin, end = math.floor(began / COLUMN) - first, math.floor(ended / COLUMN) - first
        return range(max(0, begin), min(self.width, max(begin, end) + 1))


def lanes(state: State, slots: range, axis: Axis, seen_until: float) -> list[list[Mark]]:
    """Return a row of marks for each of `slots`; the time after `seen_until` is unknown."""
    found = [[Mark.IDLE] * axis.width for _ in slots]
    for request in (*state.ended, *state.live.values()):
        _hold(found, slots, request, axis, seen_until)
    for step in state.steps_since(axis.began):
        _steps(found, slots, step, axis)
    for request in state.ended:
        if request.finish_reason == "cancelled" and request.ended is not None:
            _mark(found, slots, request.slots, axis.columns(request.ended, request.ended), Mark.CUT)
    for gap in state.gaps:
        _mark(found, slots, tuple(slots), axis.columns(gap.began, gap.ended), Mark.UNKNOWN)
    lost = axis.columns(seen_until, (axis.last + 1) * COLUMN)
    _mark(found, slots, tuple(slots), range(lost.start + 1, lost.stop), Mark.UNKNOWN)
    return found


def _hold(found: list[list[Mark]], slots: range, request: Request, axis: Axis, until: float) -> None:
    if request.admitted is not None:
        ended = until if request.ended is None else request.ended
        _mark(found, slots, request.slots, axis.columns(request.admitted, ended), Mark.HELD)


def _steps(found: list[list[Mark]], slots: range, step: Step, axis: Axis) -> None:
    columns = axis.columns(step.began, step.ended)
    for slot, phase, _ in step.parts:
        if slot is not None:
            _mark(found, slots, (slot,), columns, Mark.PREFILL if phase == "prefill" else Mark.DECODE)
            if step.aborted:  # it was computing until its last moment
                _mark(found, slots, (slot,), columns[-1:], Mark.CUT)


def _mark(found: list[list[Mark]], slots: range, which: tuple[int, ...], columns: range, mark: Mark) -> None:
    for slot in which:
        if slot in slots:
            row = found[slots.index(slot)]
            for column in columns:
                row[column] = max(row[column], mark)


def drawn(row: list[Mark], glyphs: Glyphs) -> Text:
    """Return a lane as text."""
    text = Text()
    for mark, columns in groupby(row):
        text.append(glyphs[mark] * len(list(columns)), STYLES[mark])
    return text


def legend(glyphs: Glyphs) -> Text:
    """Return the legend of the shapes."""
    text = Text()
    for mark, word in WORDS.items():
        text.append(glyphs[mark], STYLES[mark])
        text.append(f" {word}  ", "dim")
    return text
