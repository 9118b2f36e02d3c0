"""How a part is to be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the command line.

    Attributes
    ----------
    runs
        Repetitions, or requests; None for the part's own number.
    clients
        Clients at once.
    log
        File to which the server's log is appended.
    """

    model: Path
    runs: int | None = None
    clients: int = 64
    seed: int = 1
    log: Path | None = None
