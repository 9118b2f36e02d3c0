"""Requests whose template is being rendered, or schema compiled, before they are submitted: listed and cancelled like
accepted ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, RequestCancelled
from pyllmcancel.events import RequestStatus, Usage
from pyllmcancel.pausing import FlaggedPause
from pyllmcancel.requests.request import Origin, Rank, RequestSummary, Times, epoch_us
from pyllmcancel.server.http.connection import watched
from pyllmcancel.server.http.request_context import mark_client_gone
from pyllmcancel.server.http.workers import Work, Workers

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest

    from pyllmcancel.requests.request import Request

T = TypeVar("T")

# Separate from those of `workers`: bodies must not wait for a template or a schema. Those that decode pictures and
# sounds take seconds, and are separate again.
N_THREADS = 2


class Preparation(Work):
    """A request in preparation."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin["owner"])
        self.id = origin["request_id"] or ""
        self.session = origin.get("session")
        self.parent = origin.get("parent")
        self.supersede = origin.get("supersede")
        self.priority = origin.get("priority", 0)
        self.created_at = time.time()
        self.arrived_at = origin["arrived_at"] or time.monotonic()
        self.rank = Rank(origin.get("arrived_us") or epoch_us(self.arrived_at), self.id)
        self.reason: CancelReason | None = None
        self.accepted: Request | None = None  # the request that it became, if it was cancelled while it was submitted

    def cancel(self, reason: CancelReason) -> bool:
        """Give it up; return whether this call decided that."""
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
            owner=self.owner,
            status=RequestStatus.PREPARING,
            session=self.session,
            parent=self.parent,
            supersede=self.supersede,
            priority=self.priority,
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
            times=Times(self.arrived_at),
        )


class Preparations:
    """All preparations. Used in the event loop only.

    If there are several owners, none gets all threads, because a preparation may take seconds.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._live: dict[tuple[str, str], Preparation] = {}  # by owner and id, oldest first
        # By owner and supersede key: other replicas send news often, most of which concern no request here.
        self._keyed: dict[tuple[str, str], set[Preparation]] = {}
        self._awaiting = set[Preparation]()  # those of `wait`
        self._closed = False
        self._workers = Workers(N_THREADS, "pyllmcancel-prepare", per_owner=N_THREADS - shared)
        self._decoders = Workers(N_THREADS, "pyllmcancel-decode", per_owner=N_THREADS - shared)
        # A submission cannot be cancelled before its end, so it does not wait for templates or schemas.
        self._submitters = Workers(N_THREADS, "pyllmcancel-submit", per_owner=N_THREADS - shared)

    def live(self, owner: str | None = None) -> list[Preparation]:
        """Return the preparations of one owner, or of all."""
        return [preparation for preparation in self._live.values() if owner in (None, preparation.owner)]

    def find(self, owner: str, request_id: str) -> Preparation | None:
        return self._live.get((owner, request_id))

    def of_sessions(self, owner: str, sessions: Collection[str]) -> list[Preparation]:
        """Return the preparations of any of these sessions, in the order in which they began."""
        return [
            preparation
            for preparation in self._live.values()
            if preparation.owner == owner and (preparation.session or preparation.parent) in sessions
        ]

    def supersede(self, newer: Origin) -> None:
        """Cancel preparations under the key of an accepted request that arrived before it."""
        arrived_at = newer["arrived_at"] or 0.0
        for older in self.of_key(newer["owner"], newer.get("supersede")):
            if older.arrived_at < arrived_at:
                older.cancel(CancelReason.SUPERSEDED)

    def heed(self, owner: str, key: str, rank: Rank) -> None:
        """As `supersede`, for a request that another process has accepted."""
        for older in self.of_key(owner, key):
            if older.rank < rank:
                older.cancel(CancelReason.SUPERSEDED)

    def of_key(self, owner: str, key: str | None) -> list[Preparation]:
        """Return the preparations under a supersede key."""
        return [] if key is None else list(self._keyed.get((owner, key), ()))

    async def run(
        self, request: HttpRequest, function: Callable[[FlaggedPause], T], origin: Origin, *, decodes: bool = False
    ) -> T:
        """Run `function` in another thread, and return its result.

        Parameters
        ----------
        origin
            The origin that the request will be submitted with.
        decodes
            True if the function decodes pictures or sounds.

        Raises
        ------
        RequestCancelled
            The client has left, or the request was cancelled in another way.
        EngineClosedError
            The server is shutting down.
        InvalidRequestError
            The id belongs to another request in preparation; the engine refuses those of its own requests.
        """
        with self._listed(origin) as preparation:
            try:
                workers = self._decoders if decodes else self._workers
                return await workers.run(request.receive, function, preparation)
            finally:
                if preparation.reason is CancelReason.DISCONNECT:
                    mark_client_gone(request.scope)

    async def wait(self, request: HttpRequest, doing: Coroutine[Any, Any, T], origin: Origin) -> T:
        """Await `doing`, which is cancelled if the request is, and return its result; raises as `run`, and as `doing`.

        For work that waits for something outside, and so needs no thread.
        """
        task = asyncio.ensure_future(doing)
        try:
            if self._closed:
                raise EngineClosedError("the server is shutting down")
            with self._listed(origin) as preparation:
                self._awaiting.add(preparation)
                try:
                    with watched(request.receive, preparation.client_left):
                        await asyncio.wait((task, preparation.stopped), return_when=asyncio.FIRST_COMPLETED)
                    if preparation.stopped.done():
                        raise preparation.stopped.result()
                    return await task
                finally:
                    if preparation.reason is CancelReason.DISCONNECT:
                        mark_client_gone(request.scope)
                    await _ended(task)
                    self._awaiting.discard(preparation)
                    preparation.ended.set()
        finally:
            await _ended(task)

    async def submit(
        self,
        function: Callable[[], Request],
        origin: Origin,
        cancel: Callable[[Request, CancelReason], object],
    ) -> Request:
        """Run `function` in another thread, and return the request that it submits.

        A cancel that comes meanwhile is passed on to the request, and so is the end of the server.
        """

        def work(pause: FlaggedPause) -> Request:
            request = function()
            if pause.flag is not None and pause.flag.is_set():
                cancel(request, CancelReason.SHUTDOWN)
            return request

        with self._listed(origin) as preparation:
            try:
                # Not `preparation` itself: its cancel would leave the submitted request to nobody.
                accepted = await self._submitters.run(_receive_nothing, work, Work(preparation.owner))
                preparation.accepted = accepted
                if preparation.reason is not None:
                    cancel(accepted, preparation.reason)
            finally:
                preparation.ended.set()
            return accepted

    @contextmanager
    def _listed(self, origin: Origin) -> Iterator[Preparation]:
        preparation = Preparation(origin)
        key = preparation.owner, preparation.id
        if key in self._live:
            raise InvalidRequestError(f"request id {preparation.id!r} is in use by a request that has not ended", "id")
        self._live[key] = preparation
        keyed = None if preparation.supersede is None else (preparation.owner, preparation.supersede)
        if keyed is not None:
            self._keyed.setdefault(keyed, set()).add(preparation)
        try:
            yield preparation
        finally:
            del self._live[key]
            if keyed is not None:
                self._keyed[keyed].remove(preparation)
                if not self._keyed[keyed]:
                    del self._keyed[keyed]

    def close(self) -> None:
        """Give all preparations up, and accept no more. Idempotent; does not wait."""
        self._closed = True
        for preparation in list(self._awaiting):
            preparation.server_ends()
        self._workers.close()
        self._decoders.close()
        self._submitters.close()

    async def wait_closed(self) -> None:
        """Close, and wait for the work in progress."""
        await self._workers.wait_closed()
        await self._decoders.wait_closed()
        await self._submitters.wait_closed()


async def _receive_nothing() -> Any:
    await asyncio.get_running_loop().create_future()


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancel the task, and wait for its end."""
    task.cancel()
    await asyncio.wait((task,))
