"""A stream of events that its client can leave and rejoin, without any effect on the response."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi.responses import Response

from pyllmcancel.server.generate import PING, SSE_HEADERS, frame
from pyllmcancel.server.http.connection import watched
from pyllmcancel.server.http.request_context import mark_client_gone
from pyllmcancel.server.responses.event_log import Telling

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.server.responses.answer import ResponseEvent
    from pyllmcancel.server.responses.event_log import EventLog


# entries of the log that are sent before the event loop's other work has a turn
TOLD_AT_ONCE = 64


class Follower:
    """Sends all events of a log, from the first, as they come."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._telling = Telling(log.head)
        self._n_told = 0
        self._began = self._ended = False

    async def next(self) -> list[ResponseEvent] | None:
        """Return the events that are there, a limited number at once; None after the last. May be cancelled while it
        waits.
        """
        log = self._log
        await asyncio.sleep(0)
        if not self._began:
            self._began = True
            return list(self._telling.opening())
        if self._ended:
            return None
        while self._n_told == len(log.told) and log.end is None:
            await log.change()
        new = log.told[self._n_told : self._n_told + TOLD_AT_ONCE]
        self._n_told += len(new)
        if new:
            return list(self._telling.more(new))
        assert log.end is not None
        self._ended = True
        return list(self._telling.end(log.end))


class FollowingResponse(Response):
    """Server-sent events of a response in the background.

    Parameters
    ----------
    after
        The number of an event; the events after it are sent.
    ping_interval
        Seconds of silence after which a comment is sent; 0: never.
    """

    def __init__(self, log: EventLog, after: int, ping_interval: float) -> None:
        super().__init__()
        self._follower = Follower(log)
        self._after = after
        self._ping_interval = ping_interval or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send), name="follow a response")
        try:
            with watched(receive, sending.cancel):
                await asyncio.wait({sending})
        finally:
            sending.cancel()
        if sending.cancelled():
            mark_client_gone(scope)
        else:
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        while (body := await self._next()) is not None:
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the events.
            async with asyncio.timeout(self._ping_interval):
                events = await self._follower.next()
        except TimeoutError:
            return PING
        if events is None:
            return None
        return b"".join(frame(event, named=True) for event in events if event["sequence_number"] > self._after)
