"""A request that a process computes, from its arrival in front to its one ending.

The event loop is responsible for it. A canceller only notifies its `Relay`, which ends what the request waits for, or
has the process cancel it. The ending is written when the process reports that the computation has stopped, or has ended
itself. A process that reports nothing for some time after a cancel is stuck, and is not waited for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.events import Delta, FinishReason, RequestStatus
from pyllmcancel.front.forwarding import KeptSend, Lost, process_ended
from pyllmcancel.front.link import FrontLink
from pyllmcancel.front.requests import check
from pyllmcancel.front.upstream import DEADLINE_SECONDS, Broken, Headers, Unread
from pyllmcancel.requests.request import Names
from pyllmcancel.server.behind import ACCEPTED, AGAIN, BODY, CLOSED, END, ENDED, LINK, START, STATE
from pyllmcancel.server.delivered import Promise
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.request_context import ARRIVED, arrival_header
from pyllmcancel.server.http.workers import ClientLeft
from pyllmcancel.server.origin import PRIORITY

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pyllmcancel.front.forwarding import ForwardedRequest, RelayedAnswer
    from pyllmcancel.front.requests import FrontRequest, FrontRequests
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.server.streams.kept import KeptAnswer
    from pyllmcancel.server.streams.kept_answers import KeptAnswers

logger = logging.getLogger("pyllmcancel.front")

T = TypeVar("T")
IDLE_HEADER = PRIORITY.lower().encode()
COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
MAX_MOVED = 10_000  # responses
MOST_LOST = 1  # processes that a request may take along, and be tried again
MOST_UNREAD = 2  # processes that may close its connection unread


class Relay:
    """Used in the event loop only."""

    def __init__(
        self, requests: FrontRequests, request: FrontRequest, message: ForwardedRequest, answer: RelayedAnswer
    ) -> None:
        self.request = request
        self.message = message  # as its processes get it
        self.kept: KeptSend | None = None  # sends the answer if that can be taken up again
        self._has_left = False  # the client
        self._is_settled = False  # what becomes of the request without its client is known
        self._requests = requests
        self._answer = answer
        self._link: FrontLink | None = None
        self._was_accepted = False  # by any process, which may have stored something of it
        self.done = asyncio.Event()  # set when the client has its answer, or may read it, or has left
        self._n_lost = self._n_unread = 0  # processes
        self._is_given_away = False  # by its process, which ends in order
        # The time-out of the present wait, which a cancel starts, and its seconds.
        self._limit: tuple[asyncio.Timeout, float] | None = None
        self._timers: list[asyncio.TimerHandle] = []
        request.ended.add_done_callback(lambda _: self._ended())

    @property
    def status(self) -> int | None:
        """The status of the answer, if nothing more is written of it."""
        return self._answer.head.status if self._answer.complete and self._answer.head is not None else None

    # -- its client, and its cancel -----------------------------------------------------------------------------------

    def client_left(self) -> None:
        if not self._answer.complete:
            self._has_left = True
            self.done.set()
            if self._is_settled:
                self._go_on_alone()

    def settle(self, streams: KeptAnswers[KeptAnswer]) -> None:
        """Keep the answer among these streams, if its request says so. What becomes of the request without its client
        is known from now on.

        Called in the task that has the request computed. ApiError if too many streams go on.
        """
        if self.request.keeping is not None:
            self.kept = KeptSend(self.request, self._requests, streams, self._answer, self.done.set)
            self._answer.redirect(self.kept)
        self._is_settled = True
        if self._has_left:
            self._go_on_alone()

    def _go_on_alone(self) -> None:
        """Go on without the client, or cancel the request."""
        if self.kept is not None:
            if not self.request.ended.done():
                self.kept.kept.expect_reader()
            return
        self._answer.complete = True
        if not self.request.is_background or self.request.is_coming:
            self._requests.cancel(self.request, CancelReason.DISCONNECT)
        elif self._link is not None:
            self._link.pass_on = None

    def pass_cancel_on(self) -> None:
        """Have the process cancel the request, and end what is waited for here; unless the request ended otherwise."""
        if (reason := self.request.cancellation.reason) is not None:
            if self._link is not None:
                self._link.pass_on = None  # the answer's end is held back
                self._link.command(reason.encode())
            self._limit_now()

    def _ended(self) -> None:
        if self.request.cancellation.requested:
            self._limit_now()  # it waited for its model
        for timer in self._timers:
            timer.cancel()
        if self.kept is not None:
            self.kept.kept.timer.stop()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def ends_after(self, seconds: float, deadline: Deadline) -> None:
        """Cancel the request so long after its arrival, as its process does; for `Deadline.QUEUE` unless accepted."""

        def act() -> None:
            if deadline is Deadline.ALL or (self.request.is_coming and not self._was_accepted):
                self._requests.cancel(self.request, CancelReason.DEADLINE, deadline)

        if seconds < math.inf:
            wait = max(0.0, self.request.arrived_at + seconds - time.monotonic())
            self._timers.append(asyncio.get_running_loop().call_later(wait, act))

    async def until(self, coming: Awaitable[T]) -> T:
        """Return what comes; RequestCancelled if the request is cancelled before."""
        check(self.request)
        try:
            found = await self._within(0.0, coming)
        except TimeoutError:
            check(self.request)
            raise
        check(self.request)
        return found

    async def _within(self, seconds: float, coming: Awaitable[T]) -> T:
        """Return what comes; TimeoutError if it has not come within this time of a cancel."""
        try:
            async with asyncio.timeout(None) as limit:
                self._limit = limit, seconds
                if self.request.cancellation.requested:
                    self._limit_now()
                return await coming
        finally:
            self._limit = None

    def _limit_now(self) -> None:
        """Limit what is waited for, once."""
        if self._limit is not None:
            (limit, seconds), self._limit = self._limit, None
            limit.reschedule(asyncio.get_running_loop().time() + seconds)

    async def until_done(self, task: asyncio.Task[None]) -> None:
        """Wait for the client's answer, its leaving (ClientLeft), or the end of the task, which goes on in any case."""
        task.add_done_callback(lambda _: self.done.set())
        await self.done.wait()
        if task.done():
            await task
        if self._has_left:
            raise ClientLeft

    # -- in its process -----------------------------------------------------------------------------------------------

    async def through(self, process: Worker, extra: Headers) -> None:
        """Have the process compute the request, and send its answer, with `extra` headers, to the client.

        Lost if the process was lost, and another one can take the request, or go on with the answer. ApiError if none
        can, or if no more connections can be opened. RequestCancelled if the client is to get this answer, and has none
        yet. ClientLeft.
        """
        message, head = self.message, self._answer.delivered.as_head()
        arrived = arrival_header(self._answer.scope, process.clock_ahead)
        headers = [*message.headers, (ARRIVED, arrived), (LINK, b"%d" % len(head))]
        headers += [(AGAIN, b"1")] if self._was_accepted else []
        headers += [(IDLE_HEADER, b"idle")] if self.request.is_idle else []
        try:
            link = await FrontLink.begin(process.address, message.method, message.target, headers, head + message.body)
        except (ConnectionError, FileNotFoundError):
            raise Lost from None
        except OSError as error:
            why = f"no connection to the model: {error.strerror}"
            raise ApiError(503, why, "server_error", code="overloaded") from error
        self.request.process, self._is_given_away = process, False
        self._requests.moved.get(self.request.response, set()).discard(process.name)
        self._link, link.delivered = link, self._answer.delivered
        process.on_leave.add(self._leave_process)
        try:
            if self.request.cancellation.requested:  # while the connection was made
                self.pass_cancel_on()
            if not message.is_kept:
                message.body = b""
            idle = nullcontext() if process.pid is None else self._requests.computed(self.request, link.command)
            with idle:
                await self._follow(link, extra)
        except (Broken, TimeoutError, ValueError) as error:
            await self._broken(error)
        finally:
            process.on_leave.discard(self._leave_process)
            self._link = None
            link.close()

    def _leave_process(self, silent: bool) -> None:
        """Leave a process that ends in order, if another one can go on with the answer; one that is silent at once."""
        if self._link is not None and (silent or self._can_go_on):
            self._is_given_away = not silent
            self._link.close()
            self._link = None
            self._limit_now()  # it may wait for its client, which does not read

    @property
    def _can_go_on(self) -> bool:
        """True if another process could go on with the answer."""
        request = self.request
        is_answered = self._answer.complete and not request.is_background
        is_over = request.cancellation.requested or request.ended.done() or is_answered
        return not is_over and self.message.is_kept and self._answer.delivered.can_go_on

    async def _follow(self, link: FrontLink, extra: Headers) -> None:
        head = await self._within(DEADLINE_SECONDS, link.head())
        if head.get(LINK) != b"1":  # refused before the application saw the request
            await self._begin(link, head.status, head.headers, [])
            await self._answer.deliver(await link.whole())
            await self._answer.finish()
            return
        is_answered = False
        while not (is_answered and (self.request.ended.done() or self.request.is_coming)):
            kind, content = await self._within(DEADLINE_SECONDS, link.next())
            if self._link is None:  # it has left the process, and what had come and was not delivered is lost
                raise Broken
            if kind == START:
                status, fields = json.loads(content)
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
                await self._begin(link, status, headers, extra)
            elif kind == BODY:
                with suppress(TimeoutError):  # no wait for the client after a cancel, or without the process
                    await self._within(0.0, self._answer.deliver(content))
            elif kind == END:
                await self._answer.finish()
                self.done.set()
                is_answered = True
            elif kind == CLOSED:
                raise Broken
            else:
                self._learn(kind, content)

    async def _begin(self, link: FrontLink, status: int, headers: Headers, extra: Headers) -> None:
        if self.request.is_coming and not self.request.cancellation.requested:
            self._requests.arrivals.end_work(self.request)  # it is refused
        await self._answer.begin_as(link, status, headers, extra)

    def _learn(self, kind: bytes, content: bytes) -> None:
        told = json.loads(content)
        if kind == ACCEPTED:
            self._was_accepted = True
            names, size, adapters, promise = told
            self._requests.note_accepted(self.request, Names(*names))
            self.request.take_size(size, adapters)
            self._answer.delivered.promise = None if promise is None else Promise(*promise)
        elif kind == STATE:
            self.request.take_state(told)
        elif kind == ENDED:
            self._conclude(told)

    def _conclude(self, told: dict[str, Any]) -> None:
        request = self.request
        if told["reason"] == CancelReason.SHUTDOWN and self._can_go_on:
            self._is_given_away = True
            raise Broken
        finish_reason = FinishReason(told["finish_reason"])
        self._answer.came_too_late = finish_reason in COMPLETE
        request.take_state(told["state"])
        request.status = RequestStatus(told["phase"])
        if told["reason"] is not None:
            self._requests.note_cancel(request, told)
        last = Delta(0, "", limit=told.get("limit"))
        self._requests.conclude(request, finish_reason, last=last, error=told["error"], param=told["param"])

    # -- a process that is gone ---------------------------------------------------------------------------------------

    async def _broken(self, error: Exception) -> None:
        """The link is closed: by the process' end, or here."""
        reason = self.request.cancellation.reason
        self._answer.delivered.lose_rest()
        self._answer.held.clear()
        if isinstance(error, Unread) and reason is None and self.message.is_kept and self._n_unread < MOST_UNREAD:
            self._n_unread += 1
            raise Lost from None
        if self._can_go_on and (self._is_given_away or self._n_lost < MOST_LOST):
            self._n_lost += not self._is_given_away
            self._note_move()
            raise Lost from None
        if reason in (CancelReason.DISCONNECT, CancelReason.STALLED) and self.kept is None:
            raise ClientLeft
        self._end_without_process()
        await self.break_off(process_ended() if reason is None else self.request.cancel_error())

    def _note_move(self) -> None:
        """Note that what the process may have of the answer is not the answer, and begin to count anew without it."""
        assert self.request.process is not None
        logger.info("request %s leaves %s, and goes on elsewhere", self.request.id, self.request.process.name)
        moved = self._requests.moved
        if len(moved) > MAX_MOVED:
            moved.clear()
        moved.setdefault(self.request.response, set()).add(self.request.process.name)
        if self.request.status is not RequestStatus.PREPARING:
            self.request.status = RequestStatus.LOADING  # until the next process accepts it

    async def break_off(self, error: Exception) -> None:
        """End the request, and the client's answer, if that has begun; else raise the error."""
        if self._answer.head is not None:
            self._end_without_process()
        await self._answer.give_up(error)

    def _end_without_process(self) -> None:
        if not self.request.ended.done():
            self._requests.conclude(self.request, FinishReason.ERROR, error="the model's process ended")
            self.request.process = None
