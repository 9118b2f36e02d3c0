"""All answers that go on without a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.limits import MAX_STREAMS
from pyllmcancel.shares import Shares

if TYPE_CHECKING:
    from pyllmcancel.requests.request import Request, RequestSummary
    from pyllmcancel.server.streams.kept import KeptStream


class KeptStreams:
    """The streams of a server, by their owners and names. Used in the event loop only.

    Their number is limited, and with it their memory. The oldest one that has ended makes room for a new one.
    """

    def __init__(self, *, several: bool) -> None:
        self._streams: dict[tuple[str, str], KeptStream] = {}  # by owner and name, oldest first
        self._by_request: dict[tuple[str, str], KeptStream] = {}  # by owner and request's id
        self._tasks: set[asyncio.Task[None]] = set()
        self._shares = Shares(MAX_STREAMS, several=several)

    def __iter__(self) -> Iterator[KeptStream]:
        return iter(self._streams.values())

    def find(self, owner: str, name: str) -> KeptStream | None:
        """Return the stream of a conversation or, if there is none of this name, of a request."""
        return self._streams.get((owner, name)) or self.of_request(owner, name)

    def of_request(self, owner: str, request_id: str) -> KeptStream | None:
        return self._by_request.get((owner, request_id))

    def readers_of(self, request: Request | RequestSummary) -> int | None:
        """Return the number of readers of a request's stream; None if it is not kept."""
        kept = self.of_request(request.owner, request.id)
        return kept.n_readers if kept is not None and kept.request.created_at == request.created_at else None

    def make_room(self, owner: str, name: str) -> None:
        """Make room for a stream of this name; ApiError 429 if too many go on."""
        if (owner, name) in self._streams:
            return  # it will be replaced
        while not self._shares.has(owner):
            kept = self._dispensable(owner)
            if kept is None:
                message = "too many streams go on that can be taken up again: cancel some, or wait for their ends"
                raise ApiError(429, message, "rate_limit_error", code="too_many_streams")
            self.forget(kept)

    def _dispensable(self, owner: str) -> KeptStream | None:
        """Return a stream that has ended: the owner's own or, if the owner has no stream, another's."""
        own = [kept for kept in self if kept.owner == owner]
        return next((kept for kept in own or self if kept.log.ended), None)

    def begin(self, kept: KeptStream) -> None:
        """Have a stream written, and let it be found. It supersedes an older one of its name.

        Raises ApiError 429, and cancels the stream, if too many go on.
        """
        older = self._streams.get((kept.owner, kept.name))
        if older is not None and older.request.arrived_at > kept.request.arrived_at:
            kept.cancel(CancelReason.SUPERSEDED)  # it arrived first, and was accepted later
        else:
            self._replace(older, kept)
        task = asyncio.create_task(self._run(kept), name=f"keep {kept.request.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _replace(self, older: KeptStream | None, kept: KeptStream) -> None:
        if older is not None:
            older.cancel(CancelReason.SUPERSEDED)
            self.forget(older)
        try:
            self.make_room(kept.owner, kept.name)
        except ApiError:
            kept.cancel()
            raise
        self._shares.take(kept.owner)
        self._streams[kept.owner, kept.name] = kept
        self._by_request[kept.owner, kept.request.id] = kept

    async def _run(self, kept: KeptStream) -> None:
        await kept.run()
        if kept.has_successor:
            self.forget(kept)  # the newer one may be on another server
        elif self._is_findable(kept):
            kept.expire(self.forget)

    def _is_findable(self, kept: KeptStream) -> bool:
        return self._streams.get((kept.owner, kept.name)) is kept

    async def delete(self, kept: KeptStream) -> None:
        """Cancel and forget a stream, and wait until nothing is computed for it any more."""
        kept.cancel()
        self.forget(kept)
        await kept.stopped()

    def forget(self, kept: KeptStream) -> None:
        """Let a stream be found no longer; those who read it read on. Idempotent."""
        if self._is_findable(kept):
            del self._streams[kept.owner, kept.name]
            if self.of_request(kept.owner, kept.request.id) is kept:  # the id may have been used again
                del self._by_request[kept.owner, kept.request.id]
            self._shares.give_back(kept.owner)
            kept.forgotten()

    async def close(self) -> None:
        """Cancel all streams that go on, and wait until their ends are written. Idempotent."""
        for kept in list(self):
            kept.cancel(CancelReason.SHUTDOWN)
            self.forget(kept)
        if self._tasks:
            await asyncio.wait(self._tasks)
