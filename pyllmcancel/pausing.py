"""The pause function, by which work can be ended."""

from __future__ import annotations

from collections.abc import Callable

# The work calls this between two of its parts; it ends the work by raising an error.
Pause = Callable[[], None]


def no_pause() -> None:
    """The pause of work that cannot be given up, or is too short for that."""
