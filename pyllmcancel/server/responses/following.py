"""A reader's way through the events of a response in the background."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyllmcancel.server.answer_events import frame
from pyllmcancel.server.responses.event_log import Telling

if TYPE_CHECKING:
    from pyllmcancel.server.responses.answer import ResponseEvent
    from pyllmcancel.server.responses.event_log import EventLog


# entries of the log that are sent before the event loop's other work has a turn
TOLD_AT_ONCE = 64


class LogFollower:
    """Makes all events of a log, from the first, as they come.

    Parameters
    ----------
    after
        The number of an event; only the events after it are returned.
    """

    def __init__(self, log: EventLog, after: int) -> None:
        self._log = log
        self._after = after
        self._telling = Telling(log.head)
        self._n_told = 0
        self._began = self._ended = False

    async def next(self) -> bytes | None:
        events = await self._events()
        if events is None:
            return None
        return b"".join(frame(event, named=True) for event in events if event["sequence_number"] > self._after)

    async def _events(self) -> list[ResponseEvent] | None:
        log = self._log
        await asyncio.sleep(0)
        if not self._began:
            self._began = True
            return list(self._telling.opening())
        if self._ended:
            return None
        while self._n_told == len(log.told) and log.end is None:
            await log.changed.wait()
        new = log.told[self._n_told : self._n_told + TOLD_AT_ONCE]
        self._n_told += len(new)
        if new:
            return list(self._telling.more(new))
        assert log.end is not None
        self._ended = True
        return list(self._telling.end(log.end))
