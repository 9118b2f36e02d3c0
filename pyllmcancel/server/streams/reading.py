"""The readers of a stream that can be taken up again."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.following import FollowingResponse

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.requests.request import Request
    from pyllmcancel.server.streams.byte_log import ByteLog
    from pyllmcancel.server.streams.kept import KeptStream


class StreamFollower:
    """A reader's way through a stream, from a place on.

    A reader that is so slow that its next bytes have been dropped gets an error instead of them.
    """

    def __init__(self, kept: KeptStream, place: int) -> None:
        self._kept = kept
        self._place = place
        self._broken = False

    async def next(self) -> bytes | None:
        log = self._kept.log
        await asyncio.sleep(0)
        while self._place == log.end and not log.ended:
            await log.changed.wait()
        if self._broken or self._place == log.end:
            return None
        if self._place < log.begin:
            self._broken = True
            return self._kept.error_event(offset_lost(log))
        piece = log.read(self._place)
        self._place += len(piece)
        return piece


class KeptResponse(FollowingResponse):
    """The events of a kept stream, from a place on, for one reader. Its leaving cancels nothing.

    Parameters
    ----------
    is_read
        False if the client has left the process in front: then the answer has no reader yet.
    """

    def __init__(self, kept: KeptStream, place: int = 0, *, is_read: bool = True) -> None:
        super().__init__(StreamFollower(kept, place), 0.0)  # the stream has pings of its own
        self._kept = kept
        self._is_read = is_read

    @property
    def request(self) -> Request:
        """Read-only."""
        return self._kept.request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._kept.reading() if self._is_read else nullcontext():
            await super().__call__(scope, receive, send)


def offset_lost(log: ByteLog) -> ApiError:
    message = f"the first {log.begin:,} bytes of this stream are not kept any more"
    return ApiError(400, message, param="from", code="offset_lost")
