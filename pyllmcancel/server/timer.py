"""A call to come, in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timer:
    """At most one call to come. Used by the event loop only, which is the running one unless another is given."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0  # the time of the call, which uvloop's handles do not report

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, act: Callable[[], object], *, or_earlier: bool = False) -> None:
        """Call `act` after `seconds`, in place of a call that is still to come; `or_earlier` keeps an earlier one."""
        loop = self._loop or asyncio.get_running_loop()
        at = loop.time() + seconds
        if or_earlier and self._handle is not None and self._at <= at:
            return

        def fire() -> None:
            self._handle = None
            act()

        self.stop()
        self._at, self._handle = at, loop.call_at(at, fire)

    def stop(self) -> None:
        """Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
