"""The stages of a connection, and the timer that limits one."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

import h11

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Stage(Enum):
    """The stages of a connection, named after what it waits for."""

    HEAD = auto()  # of a request; the first, or one that has begun
    BODY = auto()
    ANSWER = auto()  # ours: the client has done its part
    NEXT = auto()  # request, of which nothing has come


def stage_of(conn: h11.Connection, *, served: bool) -> Stage:
    """Return the stage of a connection, which has `served` a request before, or not."""
    if conn.their_state is h11.SEND_BODY:
        return Stage.BODY
    if conn.their_state is not h11.IDLE:
        return Stage.ANSWER
    return Stage.NEXT if served and not conn.trailing_data[0] else Stage.HEAD


class Timer:
    """At most one call to come. Used by the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, act: Callable[[], object]) -> None:
        """Call `act` after `seconds`, instead of an earlier call that is still to come."""
        self.stop()
        self._handle = self._loop.call_later(seconds, act)

    def stop(self) -> None:
        """Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
