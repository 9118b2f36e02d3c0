"""A stream that its client can leave and rejoin, without any effect on the answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from fastapi.responses import Response

from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.http.connection import watched
from pyllmcancel.server.http.request_context import mark_client_gone

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Change:
    """Any number of tasks wait for the next change of something. Used in the event loop only."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()


class Follower(Protocol):
    """One reader's way through a stream."""

    async def next(self) -> bytes | None:
        """Return the events that are there, a limited number at once; None after the last. May be cancelled while it
        waits.
        """


class FollowingResponse(Response):
    """Server-sent events, as a follower finds them.

    Parameters
    ----------
    ping_interval
        Seconds of silence after which a comment is sent; 0: never.
    """

    def __init__(self, follower: Follower, ping_interval: float) -> None:
        super().__init__()
        self._follower = follower
        self._ping_interval = ping_interval or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send), name="follow a stream")
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
                return await self._follower.next()
        except TimeoutError:
            return PING
