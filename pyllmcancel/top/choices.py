"""The data for drawing the screen, besides the server's state: the user's choices, the time, the size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyllmcancel.top.lanes import BLOCKS, Glyphs
from pyllmcancel.top.request import Key


@dataclass(slots=True)
class Choices:
    """The user's side: selection, messages, the state of the connection."""

    url: str = ""
    selected: Key | None = None
    help: bool = False
    message: str = ""
    link: str = "connecting"
    lost: bool = True
    keys: bool = True
    glyphs: Glyphs = field(default_factory=lambda: BLOCKS)


class Times(NamedTuple):
    """The time of the newest column, and that of the last event, by the clock of the state."""

    now: float
    heard: float


class Size(NamedTuple):
    """The columns and lines; None as lines: as many as needed."""

    width: int
    height: int | None
