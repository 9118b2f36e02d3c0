"""The pause function, by which work can be ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyllmcancel._native import CancelFlag

# The work calls this between two of its parts; it ends the work by raising an error.
Pause = Callable[[], None]


class FlaggedPause(Protocol):
    """A `Pause` of work that the compiled core does in part: the core cannot call it, but reads its flag."""

    @property
    def flag(self) -> CancelFlag | None:
        """Raised before a call raises the error; None for work that cannot be given up."""

    def __call__(self) -> None: ...


class NoPause:
    """The pause of work that cannot be given up, or is too short for that."""

    flag = None

    def __call__(self) -> None: ...


no_pause = NoPause()
