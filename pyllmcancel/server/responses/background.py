"""A response in the background. It is generated although nobody waits for it, and any number of clients may follow
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled, RequestFailed
from pyllmcancel.events import RequestStatus
from pyllmcancel.server.errors.responses import api_error
from pyllmcancel.server.responses.answer import response_usage
from pyllmcancel.server.responses.event_log import EventLog
from pyllmcancel.server.responses.output import End, broken_off, ended
from pyllmcancel.server.responses.reading import merged

if TYPE_CHECKING:
    from pyllmcancel.requests.token_stream import AsyncStream
    from pyllmcancel.server.responses.answer import ResponseAnswer
    from pyllmcancel.server.responses.event_log import Head
    from pyllmcancel.server.responses.reading import Reader

logger = logging.getLogger("pyllmcancel.server")

Finish = Callable[["Background", End], Awaitable[End]]


class Background:
    """One response, from its submission until its end is stored. Used in the event loop only."""

    def __init__(self, owner: str, head: Head, stream: AsyncStream, reader: Reader) -> None:
        self.owner = owner
        self.id = head.response["id"]
        self.request_id = stream.request.id
        self.log = EventLog(head)
        self.ended = asyncio.Event()
        self._stream = stream
        self._reader = reader
        # The present state for those who ask: updated when asked for, with the parts that came since.
        self._shown = head.output()
        self._n_shown = 0

    async def run(self, finish: Finish) -> None:
        """Read the answer to its end, which `finish` stores; return the end that clients get."""
        try:
            async for batch in self._stream.batches():
                self.log.add([told for told in map(self._reader.read, batch) if told.parts])
            assert self._stream.ending is not None
            end = ended(self._reader.finish_reason, response_usage(self._stream.ending.usage, self._reader.n_reasoning))
        except (RequestCancelled, RequestFailed) as error:
            end = broken_off(api_error(error), self._reader.n_reasoning)
        except Exception as error:
            logger.exception("response %s failed", self.id, extra={"request_id": self.request_id})
            self.cancel()
            end = broken_off(api_error(error), self._reader.n_reasoning)
        self.log.finish(await finish(self, end))
        self.ended.set()

    def cancel(self, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel it; return whether this call decided its fate."""
        return self._stream.cancel(reason)

    def response(self) -> ResponseAnswer:
        """Return the response's present state."""
        log = self.log
        if log.end is not None:
            return log.response(log.end)
        new, self._n_shown = log.told[self._n_shown :], len(log.told)
        for told in merged(new):
            list(self._shown.feed(told.parts, told.logprobs))
        waits = self._stream.request.status is RequestStatus.WAITING
        return self._shown.response("queued" if waits else "in_progress")
