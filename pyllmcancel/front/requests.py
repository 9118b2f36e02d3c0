"""The requests of all models, in one registry: where the single server has its engine. Processes compute them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

from pyllmcancel.cancellation import Cancellation, CancelReason, Deadline
from pyllmcancel.errors import InvalidRequestError, QueueFullError, RequestCancelled
from pyllmcancel.events import Drafted, FinishReason, RequestStatus, Usage
from pyllmcancel.front.upstream import DEADLINE_SECONDS
from pyllmcancel.requests.arrivals import Arrivals, end_cancelled
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import Observers
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Outbox
from pyllmcancel.scheduling.forecast import Ahead
from pyllmcancel.server.behind import GO, WAIT
from pyllmcancel.server.http.workers import post
from pyllmcancel.server.responses.answer import RESPONSE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    from pyllmcancel.events import Delta, Ending
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.requests.request import Names, Origin, RequestSummary
    from pyllmcancel.server.streams.kept import Keeping


Moved = dict[tuple[str, str | None], set[str]]
"""By the owner and the id of a response: the processes with whose answers others went on. What they have of such an
answer is not the answer.
"""


class FrontRequest(Request):
    """Used in the event loop only, which is responsible for it."""

    def __init__(self, **origin: Unpack[Origin]) -> None:
        super().__init__(Cancellation(Event()), **origin)  # no step of this process reads it
        self.model = ""  # its name; empty until it is known
        self.keeping: Keeping | None = None  # how its stream is kept; None if it ends when its client leaves
        self.is_background = False  # it is a response that is generated after its answer
        self.previous: str | None = None  # the stored response that it goes on from
        self.keep_alive: float | None = None  # seconds for which its model stays loaded after it; None: as configured
        self.spreads = False  # its session does not decide where it goes
        self.process: Worker | None = None  # that it was sent to last; None if it ended without it
        self.on_cancel: Callable[[], object] = lambda: None  # called once when it is cancelled
        self.loop: asyncio.AbstractEventLoop | None = None  # of its relay
        self.ahead: Ahead | None = None  # what it waits for in its process, as that says
        self._n_prompt_tokens, self._n, self._max_tokens = 0, 1, None
        self._usage = Usage()
        self._in_slots: tuple[int, ...] = ()

    @property
    def response(self) -> tuple[str, str]:
        """The owner and the id by which its answer can be found later, if it is a response that is stored."""
        return self.owner, f"{RESPONSE_PREFIX}{self.id}"

    @property
    def is_coming(self) -> bool:
        """True as long as its present process has not accepted it, or it has none."""
        return self.status in (RequestStatus.PREPARING, RequestStatus.LOADING)

    def take_size(self, size: list[Any], adapters: list[tuple[int, float]]) -> None:
        """Take what a process says of a request that it has accepted."""
        self._n_prompt_tokens, self._n, self._max_tokens = size
        self.adapters = tuple((number, scale) for number, scale in adapters)

    def take_state(self, told: list[Any]) -> None:
        """Take how far the request is."""
        status, slots, self.paused, times, done, cached, generated, drafts, *waits = told
        self.ahead = Ahead(*waits[0]) if waits and waits[0] is not None else None
        ahead = 0.0 if self.process is None else self.process.clock_ahead
        self.admitted_at, self.first_token_at = (None if one is None else one - ahead for one in times)
        self.status, self._in_slots = RequestStatus(status), tuple(slots)
        self._usage = Usage(done, generated, cached, tuple(Drafted(*one) for one in drafts))

    @property
    def n_prompt_tokens(self) -> int:
        return self._n_prompt_tokens

    def usage(self) -> Usage:
        return self._usage

    def _slots(self) -> tuple[int, ...]:
        return self._in_slots

    def summary(self, ending: Ending | None = None) -> RequestSummary:
        place = None if self.process is None else self.process.replica
        told = super().summary(ending)
        return replace(told, n=self._n, max_tokens=self._max_tokens, model=self.model or None, replica=place)


BAD = 400  # the least status of a refusal


class FrontRequests:
    """Used in the event loop only, which is responsible for all. At most `max_waiting` of one owner wait for models."""

    def __init__(self, max_waiting: int) -> None:
        self.registry = Registry(max_waiting)
        self.observers = Observers()
        self.forked = False  # as an engine has it
        self._positions: dict[FrontRequest, int] = {}
        self.moved: Moved = {}  # written by relays
        self._endings = Endings(self.registry, self.observers, logs=False)  # the processes log their requests
        self.arrivals = Arrivals(self.registry, self._endings, None, self.observers, {})
        self._idle: dict[FrontRequest, Callable[[bytes], object]] = {}
        self.registry.on_foreground = self.registry.forbid_ahead = self._look_soon

    def arrive(self, **origin: Unpack[Origin]) -> FrontRequest:
        """Return a request: it is listed, or has ended, as it was cancelled before. Raises as `Arrivals.arrive`."""
        request = FrontRequest(**origin)
        self.arrivals.arrive(request)
        return request

    def take_over(self, request: FrontRequest, on_cancel: Callable[[], object]) -> None:
        """Make the caller responsible for a request. `on_cancel` is called at once when it is cancelled, with the
        registry's lock held, unless it waits for its model then. RequestCancelled if it was cancelled before.
        """
        request.loop, request.on_cancel = asyncio.get_running_loop(), on_cancel
        self.registry.begin_work(request, on_cancel)

    def waits_for_model(self, request: FrontRequest) -> None:
        """The request waits for its model from now on, and supersedes older ones. A cancel ends it at once.

        Raises QueueFullError if too many others of its owner do.
        """
        if request.status is RequestStatus.PREPARING:
            end_cancelled(self.observers, self._endings, self.registry.accept(request))
        request.status = RequestStatus.LOADING
        check(request)

    def model_is_ready(self, request: FrontRequest) -> None:
        """The request's model is there."""
        check(request)
        self.registry.give_out(request, request.on_cancel)

    @contextmanager
    def computed(self, request: FrontRequest, command: Callable[[bytes], object]) -> Iterator[None]:
        """Inside the block a process of this machine has the request. An idle one waits for foreground ones."""
        if request.is_idle:
            request.held_by_front = False  # as its process knows it
            self._idle[request] = command
            self._look()
        try:
            yield
        finally:
            self._idle.pop(request, None)

    def _look_soon(self) -> None:
        if self._idle:
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        foreground = [one for one in self.registry.requests() if not (one.is_idle or one.paused)]
        holds = any(one.process is None or one.process.pid for one in foreground if isinstance(one, FrontRequest))
        for request, command in self._idle.items():
            if request.held_by_front != holds:
                request.held_by_front = holds
                command(WAIT if holds else GO)

    def note_accepted(self, request: FrontRequest, names: Names) -> None:
        """Its process has accepted the request, and says which groups it belongs to: it now supersedes older ones."""
        if request.status is RequestStatus.PREPARING:
            if names.parent == request.parent:  # which may be an ImpliedParent
                names = names._replace(parent=request.parent)
            if request.is_idle:
                names = names._replace(priority=request.priority)
            with suppress(RequestCancelled, InvalidRequestError, QueueFullError):  # or it stays without groups
                self.arrivals.name(request, names)
            with suppress(RequestCancelled):
                effects = self.registry.accept(request, request.on_cancel)
                end_cancelled(self.observers, self._endings, effects)
        request.status = RequestStatus.WAITING

    def coming(self, owner: str | None) -> list[FrontRequest]:
        """Return the requests that no process has accepted; an owner's, or everybody's for None."""
        return [one for one in self.registry.requests(owner) if isinstance(one, FrontRequest) and one.is_coming]

    def ahead_of(self, request: Request | RequestSummary) -> Ahead | None:
        """Return what is ahead of a request: those that wait for the same model, or what its process says."""
        found = self.registry.find(request.id, owner=request.owner)
        if not isinstance(found, FrontRequest) or found.status is not request.status:
            return None
        if found.status is RequestStatus.LOADING:
            position = self._counted().get(found)
            return None if position is None else Ahead(position)
        return found.ahead

    def _counted(self) -> dict[FrontRequest, int]:
        """Return the positions of all requests that wait for their models, counted once in a turn of the event loop."""
        if not self._positions:
            counts = Counter[str]()
            for one in sorted(self.coming(None), key=lambda one: one.arrived_at):
                if one.status is RequestStatus.LOADING:
                    counts[one.model] += 1
                    self._positions[one] = counts[one.model]
            asyncio.get_running_loop().call_soon(self._positions.clear)
        return self._positions

    def cancel(
        self, request: Request, reason: CancelReason = CancelReason.EXPLICIT, deadline: Deadline | None = None
    ) -> bool:
        return self._endings.cancel(request, reason, deadline)

    def dropped(self, request: Request) -> None:
        """A reader dropped its stream; may be called from a destructor, in any thread."""
        assert isinstance(request, FrontRequest)
        assert request.loop is not None, "its relay has taken it over"
        post(request.loop, partial(self.cancel, request, CancelReason.DISCONNECT))

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
        """Write the ending of a request that no process computes, if it has none: by an error, or by an answer of this
        status. One that was refused leaves no trace.
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
