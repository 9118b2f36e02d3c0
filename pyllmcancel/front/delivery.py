"""The parts of an answer on their way from its process to its client: what goes on at once, and what is held back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyllmcancel.front.forwarding import is_stream, kept, process_ended
from pyllmcancel.front.requests import BAD
from pyllmcancel.server.behind import DOES_NOT_GO_ON
from pyllmcancel.server.delivered import Delivered

if TYPE_CHECKING:
    from pyllmcancel.front.forwarding import Answer
    from pyllmcancel.front.link import Link
    from pyllmcancel.front.request import FrontRequest
    from pyllmcancel.front.upstream import Headers


class BegunOtherwise(Exception):  # noqa: N818 - reads as the event it is
    """Another process would have begun the answer in another way."""


class Delivery:
    """Used in the event loop only.

    Attributes
    ----------
    delivered
        What the client has got, so that another process can go on.
    came_too_late
        True if the process had completed the answer when the cancel came.
    """

    def __init__(self, request: FrontRequest, answer: Answer) -> None:
        self.delivered = Delivered()
        self.came_too_late = False
        self._request = request
        self._answer = answer
        self._status, self._headers = 200, list[tuple[bytes, bytes]]()  # what the process began with
        self._held: list[bytes] = []  # not to be delivered before the answer's end is known

    async def begin(self, link: Link, status: int, headers: Headers, extra: Headers) -> None:
        """Begin a stream. What comes in one piece is held until its end, so that another process can begin anew.

        Raises
        ------
        BegunOtherwise
            The process does not go on with an answer of which nothing was delivered: it is to begin it.
        ApiError
            It does not go on with an answer that another one has begun.
        RequestCancelled
            It does not, since the request is cancelled.
        """
        is_refused = status == DOES_NOT_GO_ON and self.delivered.promise is not None
        if is_refused and not self.delivered.n_bytes:
            raise BegunOtherwise
        if self._answer.complete and status < BAD:  # of a response in the background, which moved
            return
        if is_refused or (self._answer.head is not None and not is_stream(headers)):
            raise self._request.cancel_error() if self._request.cancellation.requested else process_ended()
        self._status, self._headers = status, [*kept(headers), *extra]
        if self._request.cancellation.requested or not is_stream(headers):
            return
        if self._answer.head is None:
            await self._answer.begin(status, self._headers)
        if self._answer.is_chunked and not self._request.cancellation.requested:
            link.pass_on = self._answer.pass_on

    async def write(self, piece: bytes) -> None:
        """Deliver a piece, or hold it; an empty one waits for a client that does not keep up."""
        if self._answer.complete:
            return
        if self._request.cancellation.requested or self._answer.head is None:
            self._held.append(piece)
            return
        sound, error = self.delivered.without_failure(piece)
        self._held += [error] if error else []
        self.delivered.add(sound)
        try:
            await self._answer.write(sound)
        except asyncio.CancelledError:  # it waited for its client, and was not written
            self._held.insert(0, sound)
            raise

    async def end(self) -> None:
        """End the answer as its request has ended: a cancelled one never looks complete.

        RequestCancelled if the client has no answer yet.
        """
        if self._answer.complete:
            return
        if self._request.cancellation.requested and (self._answer.head is None or self.came_too_late):
            await self.break_off(self._request.cancel_error())
            return
        if self._answer.head is None:
            await self._answer.begin(self._status, self._headers)
        await self._answer.write(b"".join(self._held))
        await self._answer.end()

    async def break_off(self, error: Exception) -> None:
        """End the answer with an error; raise it if the answer has not begun."""
        if self._answer.head is None:
            raise error
        if not self._answer.complete:
            await self._answer.break_off(error)

    def lose_rest(self) -> None:
        """Forget what the process has told and not delivered: it is lost."""
        self.delivered.lose_rest()
        self._held.clear()
