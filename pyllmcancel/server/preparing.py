"""Requests whose template is being rendered, or schema compiled, before they are submitted: listed and cancelled like
accepted ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import InvalidRequestError, RequestCancelled
from pyllmcancel.events import RequestStatus, Usage
from pyllmcancel.pausing import Pause
from pyllmcancel.request import NO_OWNER, RequestSummary
from pyllmcancel.server.request_context import arrival_of, mark_client_gone, request_id_of
from pyllmcancel.server.workers import Work, Workers

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest

    from pyllmcancel.request import Request

T = TypeVar("T")

# Apart from those of `workers`: bodies must not wait for a template or a schema.
N_THREADS = 2


class Preparation(Work):
    """A request in preparation."""

    def __init__(self, request_id: str, arrived_at: float, session: str | None = None) -> None:
        super().__init__()
        self.id = request_id
        self.session = session
        self.created_at = time.time()
        self.arrived_at = arrived_at
        self.reason: CancelReason | None = None
        self.accepted: Request | None = None  # what it became, if it was cancelled while it was submitted

    def cancel(self, reason: CancelReason) -> bool:
        """Give it up; returns whether this call decided it."""
        decided = self.stop(RequestCancelled(reason, Usage()))
        if decided:
            self.reason = reason
        return decided

    def client_left(self) -> None:
        self.cancel(CancelReason.DISCONNECT)

    def server_ends(self) -> None:
        self.cancel(CancelReason.SHUTDOWN)

    def summary(self) -> RequestSummary:
        return RequestSummary(
            id=self.id,
            owner=NO_OWNER,
            status=RequestStatus.PREPARING,
            session=self.session,
            parent=None,
            supersede=self.session,
            priority=0,
            n=1,
            prompt_tokens=0,
            prompt_tokens_done=0,
            cached_tokens=0,
            completion_tokens=0,
            cancel_reason=self.reason,
            superseded_by=None,
            created_at=self.created_at,
            seconds=time.monotonic() - self.arrived_at,
            slots=(),
            ending=None,
        )


class Preparations:
    """All of them. Touched by the event loop only."""

    def __init__(self) -> None:
        self._live: dict[str, Preparation] = {}
        self._workers = Workers(N_THREADS, "pyllmcancel-prepare")

    def summaries(self) -> list[RequestSummary]:
        return [preparation.summary() for preparation in self._live.values()]

    def find(self, request_id: str) -> Preparation | None:
        return self._live.get(request_id)

    def of_session(self, session: str) -> list[Preparation]:
        """A session's, in the order in which they began."""
        return [preparation for preparation in self._live.values() if preparation.session == session]

    def supersede(self, session: str | None, arrived_at: float) -> None:
        """Cancel what a session has in preparation, and sent before the request that arrived then."""
        for older in self.of_session(session) if session is not None else ():
            if older.arrived_at < arrived_at:
                older.cancel(CancelReason.SUPERSEDED)

    async def run(self, request: HttpRequest, function: Callable[[Pause], T], session: str | None = None) -> T:
        """What `function` returns, in another thread.

        Parameters
        ----------
        session
            The one that the request will be submitted in.

        Raises
        ------
        RequestCancelled
            Its client has left, or somebody has cancelled it.
        EngineClosedError
            The server is shutting down.
        InvalidRequestError
            The id belongs to another request in preparation; the engine refuses those of its own requests.
        """
        with self._listed(request, session) as preparation:
            try:
                return await self._workers.run(request.receive, function, preparation)
            finally:
                if preparation.reason is CancelReason.DISCONNECT:
                    mark_client_gone(request.scope)

    async def submit(
        self,
        request: HttpRequest,
        function: Callable[[], Request],
        session: str | None,
        cancel: Callable[[Request, CancelReason], object],
    ) -> Request:
        """What `function` submits, in another thread. A cancel that comes meanwhile is passed on to it."""
        with self._listed(request, session) as preparation:
            try:
                accepted = preparation.accepted = await asyncio.to_thread(function)
                if preparation.reason is not None:
                    cancel(accepted, preparation.reason)
            finally:
                preparation.ended.set()
            return accepted

    @contextmanager
    def _listed(self, request: HttpRequest, session: str | None) -> Iterator[Preparation]:
        request_id = request_id_of(request.scope)
        if request_id in self._live:
            raise InvalidRequestError(f"request id {request_id!r} is in use by a request that has not ended", "id")
        preparation = self._live[request_id] = Preparation(request_id, arrival_of(request.scope), session)
        try:
            yield preparation
        finally:
            del self._live[request_id]

    def close(self) -> None:
        """Give everything up, and take no more. Idempotent; waits for nothing."""
        self._workers.close()

    async def wait_closed(self) -> None:
        """Close, and wait for the work in progress."""
        await self._workers.wait_closed()
