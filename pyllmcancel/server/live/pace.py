"""How often to do what costs: the longer it takes, the less often."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

# The part of one core that a feed may take, with all of its readers. The compute threads wait for each other, so what
# one core loses the whole engine loses.
SHARE = 0.005
SHORTEST, LONGEST = 0.1, 5.0  # seconds between two flushes
WEIGHT = 0.25  # of the last flush in the estimate of what a flush costs


class Pace:
    """Touched by the event loop only."""

    def __init__(self) -> None:
        self._cost = 0.0  # seconds that a flush takes, its readers' writing included: an estimate

    @property
    def interval(self) -> float:
        """Seconds between two flushes."""
        return min(max(SHORTEST, self._cost / SHARE), LONGEST)

    def learn(self, began: float, loop: asyncio.AbstractEventLoop) -> None:
        """A flush that began at this time of the thread has woken its readers: they write before it is counted."""
        loop.call_soon(self._clocked, began)

    def _clocked(self, began: float) -> None:
        self._cost += WEIGHT * (time.thread_time() - began - self._cost)
