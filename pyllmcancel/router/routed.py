"""The requests of all models, from their arrival to their endings: listed, and cancelled, also while no model's process
knows them; and the holds for requests that have not come yet.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import InvalidRequestError, RequestCancelled
from pyllmcancel.events import RequestStatus, Usage
from pyllmcancel.requests.holds import Holds
from pyllmcancel.requests.request import Rank
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.http.request_context import arrival_of, arrival_us_of, request_id_of
from pyllmcancel.server.wire.usage import usage_json

if TYPE_CHECKING:
    from starlette.types import Scope

    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.router.wishes import Wishes

NOTHING = Usage(0, 0, 0)
Mark = tuple[str, str, float]
"""A request's owner, id and arrival: ids may be used again."""


By = IntEnum("By", "ID OWNER SESSION PARENT KEY STREAM")  # the kinds of names of a request


class RoutedRequest:
    """One request, from the moment in which its model is known to its ending. Used in the event loop only.

    Attributes
    ----------
    arrived_at
        The time of its arrival, in monotonic seconds.
    rank
        Of two requests with the same supersede key, the one with the greater rank is the newer.
    names
        All by which it can be found.
    process
        The process to which it was sent; None while it waits for its model.
    is_known
        True from the beginning of its answer on: then its process knows whether it has it. Written by `answers`.
    was_refused
        True if it has ended here, by a cancel.
    """

    def __init__(self, scope: Scope, model: str, wishes: Wishes) -> None:
        self.id = request_id_of(scope)
        self.owner = owner_of(scope)
        self.model = model
        self.wishes = wishes
        self.arrived_at = arrival_of(scope)
        self.rank = Rank(arrival_us_of(scope), self.id)
        self.created = time.time()
        self.process: ModelProcess | None = None
        self.is_known = False
        self.was_refused = False
        self._awaited: asyncio.Future[Any] | None = None  # what it waits for
        self._reason: CancelReason | None = None  # sticky: the first one counts
        names = [(By.ID, self.id), (By.OWNER, self.owner), (By.KEY, wishes.key), (By.PARENT, wishes.parent)]
        # As in its process: without a session it belongs to the one that it names as its parent.
        names += [(By.SESSION, wishes.session or wishes.parent), *((By.STREAM, name) for name in wishes.streams)]
        # Each once: a stream's conversation may be called like the request.
        self.names = list(dict.fromkeys((by, name) for by, name in names if name is not None))
        self._settled: asyncio.Event | None = None  # set as soon as its process knows it, or it has none

    @property
    def mark(self) -> Mark:
        return self.owner, self.id, self.arrived_at

    @property
    def waits(self) -> bool:
        return self.process is None

    @property
    def is_between(self) -> bool:
        """True if it was sent to a process which may not know it yet."""
        return self.process is not None and not self.is_known

    # -- its task -----------------------------------------------------------------------------------------------------

    @contextmanager
    def awaits(self, future: asyncio.Future[Any]) -> Iterator[None]:
        """Inside the block, a cancel ends the future; RequestCancelled if the request is cancelled before, or right
        after the future's result has come.
        """
        self._check()
        self._awaited = future
        try:
            yield
        finally:
            self._awaited = None
        self._check()

    def _check(self) -> None:
        if self._reason is not None:
            self.was_refused = True
            raise RequestCancelled(self._reason, NOTHING)

    def goes_to(self, process: ModelProcess) -> None:
        self.process, self.is_known = process, False

    def answers(self) -> None:
        """The process has begun to answer."""
        self.is_known = True
        self._settle()

    def comes_back(self) -> None:
        """It has no process any more: it has ended, or waits again."""
        self.process = None
        self._settle()

    def _settle(self) -> None:
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    # -- others -------------------------------------------------------------------------------------------------------

    def cancel(self, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel it, now if it waits, or else as soon as it should wait again; return whether it waits, and this is the
        reason of its end.
        """
        self._reason = self._reason or reason
        if self._awaited is not None and not self._awaited.done():
            self.was_refused = True
            self._awaited.set_exception(RequestCancelled(self._reason, NOTHING))
        return self.waits and self._reason is reason

    async def until_settled(self) -> None:
        """Wait until its process knows it, or it has no process."""
        if self.is_between:
            if self._settled is None:
                self._settled = asyncio.Event()
            await self._settled.wait()

    def entry(self) -> dict[str, Any]:
        """Return the request as ``/v1/requests`` lists it."""
        nothing = ("finish_reason", "cancel_reason", "superseded_by", "cancel_latency_ms", "error", "max_tokens")
        zero = ("priority", "prompt_tokens", "prompt_tokens_done", "cached_tokens", "completion_tokens")
        return {
            "id": self.id,
            "object": "request",
            "status": "waiting",
            "phase": self.phase,
            "model": self.model,
            "owner": self.owner,
            "session": self.wishes.session,
            "parent_session": self.wishes.parent,
            "supersede": self.wishes.key,
            "n": 1,
            "slots": [],
            "paused": False,
            **dict.fromkeys(zero, 0),
            **dict.fromkeys(nothing),
            "created": self.created,
            "seconds": round(time.monotonic() - self.arrived_at, 4),
            "times": {"arrived": self.arrived_at} | dict.fromkeys(("admitted", "first_token", "cancelled", "ended")),
        }

    @property
    def phase(self) -> str:
        return "loading" if self.waits else str(RequestStatus.PREPARING)

    def cancelled(self) -> dict[str, Any]:
        """Return the answer to its cancel."""
        return {
            "id": self.id,
            "outcome": "cancelled",
            "reason": str(CancelReason.EXPLICIT),
            "phase": self.phase,
            "cancel_latency_ms": 0.0 if self.waits else None,
            "usage": usage_json(NOTHING),
        }


class RoutedRequests:
    """All of them, the oldest first. Used in the event loop only."""

    def __init__(self) -> None:
        self._requests: dict[RoutedRequest, None] = {}
        self._named = defaultdict[tuple[By, str], dict[RoutedRequest, None]](dict)
        self._n_waiting = Counter[str]()  # by owner
        self.holds = Holds()  # of all models: a process holds nothing for those that are loaded later

    @contextmanager
    def lists(self, request: RoutedRequest) -> Iterator[None]:
        """Inside the block, the request is one of these; RequestCancelled if it was cancelled before it came."""
        lineage = [name for name in (request.wishes.session, request.wishes.parent) if name is not None]
        if self.holds.reach(request.owner, request.id, request.arrived_at, lineage):
            raise RequestCancelled(CancelReason.EXPLICIT, NOTHING)
        self._requests[request] = None
        for name in request.names:
            self._named[name][request] = None
        try:
            yield
        finally:
            request.comes_back()
            del self._requests[request]
            for name in request.names:
                del self._named[name][request]
                if not self._named[name]:
                    del self._named[name]

    @contextmanager
    def waits(self, request: RoutedRequest, most: int) -> Iterator[None]:
        """Inside the block, the request waits beside the owner's others.

        Raises
        ------
        InvalidRequestError
            Another one that waits has its id: a cancel could mean either.
        ApiError
            There are `most` of them.
        """
        if any(one.waits and one is not request for one in self.named(request.owner, By.ID, request.id)):
            raise InvalidRequestError(f"request id {request.id!r} is in use by a request that has not ended", "id")
        if self._n_waiting[request.owner] >= most:
            raise ApiError(429, "too many requests wait for models", "rate_limit_error", code="queue_full")
        self._n_waiting[request.owner] += 1
        try:
            yield
        finally:
            self._n_waiting[request.owner] -= 1
            if not self._n_waiting[request.owner]:
                del self._n_waiting[request.owner]

    def supersede(self, request: RoutedRequest) -> None:
        """Cancel all but the newest of `request` and the waiting requests with its key."""
        for one in self.named(request.owner, By.KEY, request.wishes.key):
            if one.waits and one is not request:
                older = one if one.rank < request.rank else request
                older.cancel(CancelReason.SUPERSEDED)

    def __contains__(self, request: RoutedRequest) -> bool:
        return request in self._requests

    def named(self, owner: str | None, by: By, name: str | None) -> list[RoutedRequest]:
        """Return an owner's requests of this name, or everybody's for the owner None."""
        found = () if name is None else self._named.get((by, name), ())
        return [one for one in found if owner in (None, one.owner)]

    def of(self, owner: str | None) -> list[RoutedRequest]:
        """Return an owner's requests; None: everybody's."""
        return list(self._requests) if owner is None else self.named(owner, By.OWNER, owner)

    def waiting(self, owner: str | None) -> list[RoutedRequest]:
        """Return those that wait for their model."""
        return [one for one in self.of(owner) if one.waits]

    def family(self, owner: str, session: str, *, descendants: bool) -> list[RoutedRequest]:
        """Return the requests of a session and, with `descendants`, of the sessions below it."""
        found, names = dict[RoutedRequest, None](), [session]
        for name in names:  # which may become more meanwhile
            found |= dict.fromkeys(self.named(owner, By.SESSION, name))
            below = (one.wishes.session for one in self.named(owner, By.PARENT, name) if descendants)
            names += dict.fromkeys(one for one in below if one is not None and one not in names)
        return list(found)


def mark_of(entry: Mapping[str, Any]) -> Mark:
    """Return the mark of a request, by its entry in ``/v1/requests``."""
    return entry["owner"], entry["id"], entry["times"]["arrived"]
