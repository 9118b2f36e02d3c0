"""The requests of all models, in one registry: where the single server has its engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.errors import InvalidRequestError, QueueFullError, RequestCancelled
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.front.request import FrontRequest
from pyllmcancel.front.upstream import DEADLINE_SECONDS
from pyllmcancel.requests.arrivals import Arrivals, end_cancelled
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import Observers
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.token_stream import Outbox
from pyllmcancel.scheduling.forecast import Ahead

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from pyllmcancel.events import Delta
    from pyllmcancel.requests.effects import Accepted
    from pyllmcancel.requests.request import Names, Origin, Request, RequestSummary

BAD = 400  # the least status of a refusal


class FrontRequests:
    """Used in the event loop only, which is responsible for all of them.

    Parameters
    ----------
    max_waiting
        The limit of one owner's requests that wait for their models.
    """

    def __init__(self, max_waiting: int) -> None:
        self.registry = Registry(max_waiting)
        self.observers = Observers()
        self.failure = None  # as an engine has one
        self._endings = Endings(self.registry, self.observers, logs=False)  # the processes log their requests
        self.arrivals = Arrivals(self.registry, self._endings, None, self.observers, {})

    def arrive(self, **origin: Unpack[Origin]) -> FrontRequest:
        """Return a request: it is listed, or has ended, as it was cancelled before. Raises as `Arrivals.arrive`."""
        request = FrontRequest(**origin)
        self.arrivals.arrive(request)
        return request

    def take_over(self, request: FrontRequest, on_cancel: Callable[[], object]) -> None:
        """Make the caller responsible for a request. `on_cancel` is called soon after it is cancelled, unless it waits
        for its model then. RequestCancelled if it was cancelled before.
        """
        loop = asyncio.get_running_loop()
        request.on_cancel = lambda: loop.call_soon(on_cancel)
        self.registry.begin_work(request, request.on_cancel)

    def waits(self, request: FrontRequest) -> None:
        """The request waits for its model from now on, and supersedes older ones. A cancel ends it at once.

        Raises QueueFullError if too many others of its owner do.
        """
        if request.status is RequestStatus.PREPARING:
            self._take_effect(self.registry.accept(request))
        request.status = RequestStatus.LOADING
        check(request)

    def goes_on(self, request: FrontRequest) -> None:
        """The request's model is there."""
        check(request)
        self.registry.give_out(request, request.on_cancel)

    def accepted(self, request: FrontRequest, names: Names) -> None:
        """Its process has accepted the request, and says which groups it belongs to: it now supersedes older ones."""
        if request.status is RequestStatus.PREPARING:
            if names.parent == request.parent:  # which may be an ImpliedParent
                names = names._replace(parent=request.parent)
            with suppress(RequestCancelled, InvalidRequestError, QueueFullError):  # or it stays without groups
                self.arrivals.name(request, names)
            with suppress(RequestCancelled):
                self._take_effect(self.registry.accept(request, request.on_cancel))
        request.status = RequestStatus.WAITING

    def _take_effect(self, effects: Accepted) -> None:
        end_cancelled(self.observers, self._endings, effects)

    def coming(self, owner: str | None) -> list[FrontRequest]:
        """Return the requests that no process has accepted; an owner's, or everybody's for None."""
        here = (RequestStatus.PREPARING, RequestStatus.LOADING)
        return [one for one in self.registry.requests(owner) if isinstance(one, FrontRequest) and one.status in here]

    def readers_of(self, request: Request | RequestSummary) -> int | None:
        """Return the number of readers of a live request's stream; None if it is not kept."""
        found = self.registry.find(request.id, owner=request.owner)
        return found.n_readers if isinstance(found, FrontRequest) and found.created_at == request.created_at else None

    def ahead_of(self, request: Request | RequestSummary) -> Ahead | None:
        """Return what is ahead of a request: those that wait for the same model, or what its process says."""
        found = self.registry.find(request.id, owner=request.owner)
        if not isinstance(found, FrontRequest) or found.status is not request.status:
            return None
        if found.status is RequestStatus.LOADING:
            here = [one for one in self.coming(None) if one.model == found.model and one.status is found.status]
            return Ahead(1 + sum(one.arrived_at < found.arrived_at for one in here))
        return found.ahead

    def cancel(
        self, request: Request, reason: CancelReason = CancelReason.EXPLICIT, deadline: Deadline | None = None
    ) -> bool:
        return self._endings.cancel(request, reason, deadline)

    def note_cancel(self, request: FrontRequest, told: dict[str, Any]) -> None:
        """Note that its process has cancelled the request, unless it was cancelled here."""
        if not request.cancellation.requested:
            request.superseded_by, request.retry_after = told["superseded_by"], told.get("retry_after")
        deadline = told.get("deadline")
        self.cancel(request, CancelReason(told["reason"]), None if deadline is None else Deadline(deadline))

    def conclude(
        self,
        request: Request,
        finish_reason: FinishReason,
        *,
        last: Delta | None = None,
        error: str | None = None,
        param: str | None = None,
    ) -> None:
        """Write the ending of a request, whose computation has stopped."""
        outbox = Outbox()
        self._endings.conclude(request, finish_reason, outbox, last=last, error=error, param=param)
        outbox.flush()

    async def end_all(self, seconds: float, hurry: asyncio.Event) -> None:
        """Cancel the live requests after some seconds, or when `hurry` is set: workers elsewhere go on."""
        tasks = asyncio.create_task(self._all_ended()), asyncio.create_task(hurry.wait())
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for one in self.registry.requests():
            self.cancel(one, CancelReason.SHUTDOWN)
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._all_ended()

    async def _all_ended(self) -> None:
        for one in self.registry.requests():
            await asyncio.shield(asyncio.wrap_future(one.ended))

    def leave(self, request: FrontRequest, error: Exception | None, status: int | None) -> None:
        """Write the ending of a request that no process computes, if it has none; one that was refused leaves no trace.

        Parameters
        ----------
        error
            What ended it.
        status
            The status of its answer, if it has a complete one.
        """
        if request.ended.done():
            return
        if request.status is RequestStatus.PREPARING:
            self.arrivals.end_work(request)
            self.arrivals.refuse(request)
            return
        self.registry.withdraw(request)  # it may wait for its model
        if status is not None and status < BAD:
            self.conclude(request, FinishReason.STOP)  # it computed nothing
        else:
            self.conclude(request, FinishReason.ERROR, error=str(error or f"its process refused it: status {status}"))


def check(request: Request) -> None:
    """Raise RequestCancelled if the request is cancelled."""
    if request.cancellation.requested:
        raise request.cancel_error()
