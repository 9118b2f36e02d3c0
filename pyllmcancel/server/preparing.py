"""Requests whose template is being rendered, or schema compiled, before they are submitted: listed and cancelled like
accepted ones.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, RequestCancelled
from pyllmcancel.pausing import Pause
from pyllmcancel.request import RequestStatus, RequestSummary, Usage
from pyllmcancel.server.request_context import arrival_of, mark_client_gone, request_id_of
from pyllmcancel.server.workers import Abandoned

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import Receive

T = TypeVar("T")

# Apart from those of `workers`: bodies must not wait for a template or a schema.
N_THREADS = 2


class Preparation:
    """A request in preparation. Touched by the event loop only, but where it says otherwise."""

    def __init__(self, request_id: str, arrived_at: float, session: str | None = None) -> None:
        self.id = request_id
        self.session = session
        self.created_at = time.time()
        self.arrived_at = arrived_at
        self.reason: CancelReason | None = None
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[None] = self._loop.create_future()  # done by the cancel
        self.ended = asyncio.Event()  # the work has ended, or was dropped
        self._abandoned = threading.Event()

    def cancel(self, reason: CancelReason) -> bool:
        """Give it up; returns whether this call decided it.

        Also when the work has ended: its outcome is not taken before the event loop's next turns, and would be taken
        for that of a request that nobody has cancelled.
        """
        if self.stopped.done():
            return False
        self.reason = reason
        self.abandon()
        self.stopped.set_result(None)
        return True

    def abandon(self) -> None:
        """End the work at its next `check`."""
        self._abandoned.set()

    def check(self) -> None:
        """Called by the work, in its thread."""
        if self._abandoned.is_set():
            raise Abandoned

    def work_has_ended(self, _work: Future[Any]) -> None:
        """Called in the work's thread, or where it was dropped before it began."""
        with suppress(RuntimeError):  # the server has ended before
            self._loop.call_soon_threadsafe(self.ended.set)

    def summary(self) -> RequestSummary:
        return RequestSummary(
            id=self.id,
            status=RequestStatus.PREPARING,
            session=self.session,
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
        self._threads = ThreadPoolExecutor(N_THREADS, "pyllmcancel-prepare")
        self._closed = False

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

    async def run(self, request: Request, work: Callable[[Pause], T], session: str | None = None) -> T:
        """What `work` returns, in another thread. It calls its argument now and then, which ends it by raising.

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
        if self._closed:
            raise EngineClosedError("the server is shutting down")
        request_id = request_id_of(request.scope)
        if request_id in self._live:
            raise InvalidRequestError(f"request id {request_id!r} is in use by a request that has not ended", "id")
        preparation = self._live[request_id] = Preparation(request_id, arrival_of(request.scope), session)
        submitted = self._threads.submit(work, preparation.check)
        submitted.add_done_callback(preparation.work_has_ended)
        done = asyncio.wrap_future(submitted)
        watcher = asyncio.create_task(_until_left(request.receive, preparation))
        try:
            await asyncio.wait((done, preparation.stopped), return_when=asyncio.FIRST_COMPLETED)
            if preparation.reason is None:
                return done.result()
            if preparation.reason is CancelReason.DISCONNECT:
                mark_client_gone(request.scope)
            raise RequestCancelled(preparation.reason, Usage())
        finally:
            watcher.cancel()
            preparation.abandon()
            done.cancel()  # what has not begun; of what has, the outcome is nobody's
            del self._live[request_id]

    def close(self) -> None:
        """Give everything up, and take no more. Idempotent; waits for nothing."""
        self._closed = True
        for preparation in list(self._live.values()):
            preparation.cancel(CancelReason.SHUTDOWN)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def wait_closed(self) -> None:
        """Close, and wait for the work in progress."""
        self.close()
        await asyncio.to_thread(self._threads.shutdown)


async def _until_left(receive: Receive, preparation: Preparation) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    preparation.cancel(CancelReason.DISCONNECT)
