"""The event loop's lag, which delays every answer, and every cancel that comes over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyllmcancel.server.timer import Timer

EVERY_SECONDS = 0.1


class LoopLag:
    """Measures how late a timer fires in the running event loop, again and again."""

    def __init__(self, observe: Callable[[float], object], every: float = EVERY_SECONDS) -> None:
        self._observe = observe
        self._every = every
        self._timer = Timer()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._every

        def come() -> None:
            self._observe(max(0.0, loop.time() - due))
            self.start()

        self._timer.start(self._every, come)

    def stop(self) -> None:
        """Idempotent."""
        self._timer.stop()
