"""The actions that a `Roster` decides on."""

from __future__ import annotations

from dataclasses import dataclass

from pyllmcancel.front.model import Ticket


@dataclass(frozen=True, slots=True)
class Start:
    """Start the model's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Find out whether the model's file is one and, if `whole`, what it will take, without loading it; report it to
    `Roster.fits` or `Roster.unfit`.
    """

    name: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """End the model's process; with `kill` at once, since nobody waits for what it does."""

    name: str
    kill: bool


@dataclass(frozen=True, slots=True)
class Admit:
    """Send the request to the model's process."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with an error."""

    ticket: Ticket
    why: str
    code: str = "model_not_loaded"


Action = Start | Measure | Stop | Admit | Refuse
