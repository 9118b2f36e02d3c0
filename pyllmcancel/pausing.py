"""How long work tells where it can be ended."""

from __future__ import annotations

from collections.abc import Callable

# Called by the work between two of its parts; ends it by raising.
Pause = Callable[[], None]


def no_pause() -> None:
    """For work that cannot be given up, or is too short for that."""
