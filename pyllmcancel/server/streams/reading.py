"""The readers of a kept answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.connection import until_left
from pyllmcancel.server.streams.kept import ByteLog, KeptAnswer

EVENT_END = b"\n\n"  # in no event


class KeptResponse(Response):
    """The events of a kept answer, from a place on, for one reader. Its leaving cancels nothing.

    A reader that is so slow that its next bytes have been dropped gets an error instead of them.

    Bytes up to a `place` are left out, and then the events before the `first`. After a silence of `ping_interval`
    seconds a comment is sent; 0: never, because the answer has pings of its own.
    """

    def __init__(
        self,
        kept: KeptAnswer,
        place: int = 0,
        *,
        first: int = 0,
        ping_interval: float = 0.0,
        headers: Sequence[tuple[bytes, bytes]] = SSE_HEADERS,
    ) -> None:
        super().__init__()
        self._kept = kept
        self._place = place
        self._first = first
        self._ping_interval = ping_interval or None
        self._start = {"type": "http.response.start", "status": 200, "headers": list(headers)}
        self._broken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send), name="read a kept answer")
        with self._kept.reading():
            await until_left(scope, receive, sending)

    async def _send(self, send: Send) -> None:
        await send(self._start)
        while (events := await self._next()) is not None:
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        """Return the events that are there, a limited number at once; None after the last."""
        log = self._kept.log
        await asyncio.sleep(0)
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the events.
            async with asyncio.timeout(self._ping_interval):
                if self._broken or not await log.longer_than(self._place):
                    return None
        except TimeoutError:
            return PING
        if self._place < log.begin:
            self._broken = True
            return self._kept.error_event(offset_lost(log))
        events = log.read(self._place)
        self._place += len(events)
        events, self._first = without_first(events, self._first)
        return events


def without_first(events: bytes, number: int) -> tuple[bytes, int]:
    """Leave out the first events; return the others, and the number of those that are still to be left out."""
    *first, rest = events.split(EVENT_END, min(number, len(events)))
    return rest, number - len(first)


def offset_lost(log: ByteLog) -> ApiError:
    message = f"the first {log.begin:,} bytes of this stream are not kept any more"
    return ApiError(400, message, param="from", code="offset_lost")
