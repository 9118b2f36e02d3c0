"""The interval of a costly action: the longer the action takes, the rarer it is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

# The share of one core that a feed may take, with all of its readers. The compute threads wait for each other, so the
# whole engine loses what one core loses.
SHARE = 0.005
SHORTEST, LONGEST = 0.1, 5.0  # seconds between two flushes
WEIGHT = 0.25  # weight of the last flush in the estimate of a flush's cost


class Pace:
    """The interval between flushes. Used in the event loop only."""

    def __init__(self) -> None:
        self._cost = 0.0  # estimate of a flush's seconds, its readers' writing included

    @property
    def interval(self) -> float:
        """Return the seconds between two flushes."""
        return min(max(SHORTEST, self._cost / SHARE), LONGEST)

    def learn(self, began: float, loop: asyncio.AbstractEventLoop) -> None:
        """Learn from a flush that began at this time of the thread; the readers that it has woken write before it is
        counted.
        """
        loop.call_soon(self._clocked, began)

    def _clocked(self, began: float) -> None:
        self._cost += WEIGHT * (time.thread_time() - began - self._cost)
