"""How a part is to be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of the command line."""

    model: Path
    runs: int | None = None  # repetitions, or requests; None for the part's own number
    clients: int = 64  # clients at once
    seed: int = 1
    log: Path | None = None  # file to which the server's log is appended
