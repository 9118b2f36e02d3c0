"""A request that a process computes, from its arrival in front to its one ending.

The event loop is responsible for it. A canceller only tells its `Relay`: that ends what the request waits for, has the
process cancel it, or closes the link if its client has left. The ending is written when the process says that the
computation has stopped, or has ended itself.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.front.delivery import BegunOtherwise, Delivery
from pyllmcancel.front.forwarding import ClientLeft, Lost, NotReached, connected, process_ended
from pyllmcancel.front.front import DEADLINE_SECONDS
from pyllmcancel.front.link import CLOSED, Link, content_of
from pyllmcancel.front.requests import check
from pyllmcancel.front.upstream import Broken, Exchange, Headers, Unread
from pyllmcancel.requests.request import Names
from pyllmcancel.server.behind import ACCEPTED, BODY, END, ENDED, LINK, START, STATE
from pyllmcancel.server.delivered import Promise
from pyllmcancel.server.from_front import Cancel, Cancelled, Done, Leave
from pyllmcancel.server.http.request_context import ARRIVED, arrival_told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyllmcancel.front.forwarding import Answer, Message
    from pyllmcancel.front.front import Front
    from pyllmcancel.front.request import FrontRequest
    from pyllmcancel.front.requests import FrontRequests
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.server.requests.answers import CancelAnswer

COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
MOST_LOST = 1  # processes that a request may take along, and be tried again
MOST_GIVEN_AWAY = 10_000  # names of answers
MOST_UNREAD = 2  # processes that may close its connection unread


class Relay:
    """Used in the event loop only.

    Parameters
    ----------
    keeps
        The seconds for which the request goes on without its client, whose stream can be taken up again; 0 if it does
        not, None until that is known.
    """

    def __init__(self, front: Front, requests: FrontRequests, request: FrontRequest, answer: Answer) -> None:
        self.request = request
        self.keeps: float | None = None
        self.left_at: float | None = None  # when the client left, in monotonic seconds
        self._front = front
        self._requests = requests
        self._answer = answer
        self._awaited: asyncio.Future[Any] | None = None  # what the request waits for
        self._link: Link | None = None
        self.is_kept = False  # its stream can be taken up again, and it goes on without its client
        self.lives_on = False  # without a client: what is left to do does not end with the client's call
        self._is_seen = False  # by its process
        self._is_accepted = False
        self._gone = asyncio.Event()  # set when the client has left
        self._delivery = Delivery(request, answer)
        self._n_lost = self._n_unread = 0  # processes
        self._has_body = True  # that could be sent to another process
        self._is_given_away = False  # by its process, which ends in order
        self._timers: list[asyncio.TimerHandle] = []
        request.ended.add_done_callback(lambda _: self._ended())

    @property
    def status(self) -> int | None:
        """The status of the answer, if it is complete."""
        return self._answer.head.status if self._answer.complete and self._answer.head is not None else None

    # -- its client, and its cancel -----------------------------------------------------------------------------------

    def client_left(self) -> None:
        self.left_at = time.monotonic()
        self._answer.drop()
        self._gone.set()
        if self.keeps is not None:
            self.keep(self.keeps)

    def keep(self, seconds: float) -> None:
        """Let the request go on without its client, for so long after the leaving: its process counts on from there."""
        self.keeps = seconds
        self._delivery.delivered.keeps_body = seconds > 0.0
        if self.left_at is None:
            return
        if not seconds:
            self._requests.cancel(self.request, CancelReason.DISCONNECT)
        elif self._is_seen:
            self._tell_of_leaving()
        else:
            wait = seconds - (time.monotonic() - self.left_at)
            self._timers.append(asyncio.get_running_loop().call_later(max(0.0, wait), self._give_up))

    def _give_up(self) -> None:
        if not self._is_seen:
            self._requests.cancel(self.request, CancelReason.DISCONNECT)

    def _tell_of_leaving(self) -> None:
        process = self.request.process
        if process is not None:
            message = Leave(owner=self.request.owner, id=self.request.id)
            self._front.spawn(self._front.ask(process, message, Done))

    def cancelled(self) -> None:
        """Note that the request is cancelled, and is to be ended here."""
        reason = self.request.cancellation.reason
        self._wake()
        if self._link is None or self.request.ended.done():
            return
        self._link.pass_on = None  # the answer's end is held back
        if reason in (CancelReason.DISCONNECT, CancelReason.STALLED):
            self._link.close()
        else:
            self._front.spawn(self._cancel_in_process(self._link))

    def _ended(self) -> None:
        self._wake()
        for timer in self._timers:
            timer.cancel()

    def _wake(self) -> None:
        """End what a cancelled request waits for."""
        reason = self.request.cancellation.reason
        if reason is not None and self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(RequestCancelled(reason, self.request.usage()))

    async def _cancel_in_process(self, link: Link) -> None:
        """Write the ending as the process says it: in the link that comes only as fast as the client reads. A process
        that does not answer is stuck, and is not waited for.
        """
        try:
            answer = await self._stopped_in_process()
        except Broken:
            link.close()
        else:
            if answer is not None:
                self._conclude_as_told(answer)

    async def _stopped_in_process(self) -> CancelAnswer | None:
        """Have the process cancel the request, and return its answer when the computation has stopped.

        None if it has not seen the request yet, which it will cancel; Broken if it does not answer.
        """
        process, reason = self.request.process, self.request.cancellation.reason
        assert process is not None
        assert reason is not None
        message = Cancel(owner=self.request.owner, id=self.request.id, reason=reason)
        while (told := await self._front.ask(process, message, Cancelled, DEADLINE_SECONDS)) is not None:
            # A request of this id that has ended may be an older one.
            answer = told.answer if told.was_live or self._is_seen else None
            if answer is None or has_stopped(answer):
                return answer
        raise Broken

    # -- waiting ------------------------------------------------------------------------------------------------------

    def ends_at(self, deadline: float) -> None:
        """Cancel the request at this time, on the monotonic clock; its process does, too, if the client reads."""
        if deadline < math.inf:
            wait = max(0.0, deadline - time.monotonic())
            act = partial(self._requests.cancel, self.request, CancelReason.DEADLINE)
            self._timers.append(asyncio.get_running_loop().call_later(wait, act))

    async def until(self, future: asyncio.Future[Any]) -> Any:
        """Return what comes; RequestCancelled if the request is cancelled before."""
        check(self.request)
        self._awaited = future
        try:
            found = await future
        finally:
            self._awaited = None
        check(self.request)
        return found

    # -- in its process -----------------------------------------------------------------------------------------------

    async def through(self, message: Message, process: Worker, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Have the process compute the request, and send its answer to the client.

        Raises
        ------
        NotReached
            The process has ended, or is about to; it has seen nothing of the request.
        Lost
            The process was lost, and another one can go on with the answer.
        ApiError
            None can, or this process may open no more connections.
        RequestCancelled
            The client has no answer yet, and is to get this one.
        ClientLeft
        """
        delivered = self._delivery.delivered
        head, body = delivered.as_head(), bytes(delivered.body or b"")
        sizes = b"%d,%d" % (len(head), len(body)) if head else b"1"
        told = (ARRIVED, arrival_told(self._answer.scope, self.left_at, process.clock_ahead)), (LINK, sizes)
        begun = await connected(message, process.address, told, head + body if head else b"")
        self.request.process, self._is_seen, self._is_given_away = process, False, False
        process.given_away -= {(self.request.owner, name) for name in self.request.found_by}
        self._link = Link(begun, delivered)
        process.on_leave.add(self._leave_process)
        try:
            if self.request.cancellation.requested:
                self.cancelled()  # it came while the connection was made
            await self._follow(begun, self._link, message, list(extra))
        except BegunOtherwise:
            delivered.forget()
            raise Lost from None
        except (Broken, ValueError) as error:
            await self._broken(error)
        finally:
            process.on_leave.discard(self._leave_process)
            link, self._link = self._link, None
            if self._answer.complete and self._is_accepted and not self.request.ended.done():
                self.lives_on = True  # a response in the background
                self._front.spawn(self._outlive(begun, link))
            else:
                begun.close()

    def _leave_process(self, silent: bool) -> None:
        """Leave a process that ends in order, if another one can go on with the answer; one that is silent at once."""
        if self._link is not None and (silent or self._can_go_on):
            self._is_given_away = not silent
            self._link.close()

    @property
    def _can_go_on(self) -> bool:
        """True if another process could go on with the answer."""
        request = self.request
        is_over = self._answer.complete or request.cancellation.requested or request.ended.done()
        return not is_over and self._has_body and self._delivery.delivered.can_go_on

    async def until_left(self, task: asyncio.Task[None]) -> None:
        """Wait for a task, which goes on after the client has left: then ClientLeft is raised."""
        left = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
        if self._gone.is_set():
            raise ClientLeft
        await task

    async def _follow(self, begun: Exchange, link: Link, message: Message, extra: Headers) -> None:
        sent_at = time.monotonic()
        if not message.is_kept:
            message.body, self._has_body = b"", False
        head = await begun.head()
        self._is_seen = True
        if self.left_at is not None and self.left_at > sent_at and self.keeps:
            self._tell_of_leaving()
        if head.get(LINK) != b"1":  # refused before the application saw the request
            await self._begin(link, head.status, head.headers, [])
            await self._delivery.write(await begun.whole())
            await self._delivery.end()
            return
        while not self._answer.complete:
            kind, content = await link.next()
            if kind == START:
                status, told = content_of(content)
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told]
                await self._begin(link, status, headers, extra)
            elif kind == BODY:
                await self._delivery.write(content)
            elif kind == END:
                await self._delivery.end()
            elif kind == CLOSED:
                raise Broken
            else:
                self._learn(kind, content)

    async def _begin(self, link: Link, status: int, headers: Headers, extra: Headers) -> None:
        if not (self._is_accepted or self.request.cancellation.requested):
            self._requests.arrivals.end_work(self.request)  # it is refused
        await self._delivery.begin(link, status, headers, extra)

    def _learn(self, kind: bytes, content: bytes) -> None:
        told = content_of(content)
        if kind == ACCEPTED:
            self._is_accepted = True
            names, size, adapters, promise = told
            self._requests.accepted(self.request, Names(*names))
            self.request.take_size(size, adapters)
            self._delivery.delivered.promise = None if promise is None else Promise(*promise)
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
        self._delivery.came_too_late = finish_reason in COMPLETE
        if request.ended.done():  # by the answer to its cancel
            return
        request.take_state(told["state"])
        request.status = RequestStatus(told["phase"])
        if (reason := told["reason"]) is not None:
            self._requests.note_cancel(request, CancelReason(reason), told["superseded_by"])
        self._requests.conclude(request, finish_reason, error=told["error"], param=told["param"])

    async def _outlive(self, begun: Exchange, link: Link) -> None:
        """Follow a request whose answer is complete, until it ends."""
        self._link = link
        try:
            while not self.request.ended.done():
                self._learn(*await link.next())
        except (Broken, ValueError):
            pass
        finally:
            self._link = None
            begun.close()
            self._end_without_process()

    # -- a process that is gone ---------------------------------------------------------------------------------------

    async def _broken(self, error: Exception) -> None:
        """The link is closed: by the process' end, or here."""
        reason = self.request.cancellation.reason
        self._delivery.lose_rest()
        if isinstance(error, Unread) and reason is None and self._has_body and self._n_unread < MOST_UNREAD:
            self._n_unread += 1
            raise NotReached from None
        if self._can_go_on and (self._is_given_away or self._n_lost < MOST_LOST):
            self._n_lost += not self._is_given_away
            self._note_move()
            raise Lost from None
        if reason in (CancelReason.DISCONNECT, CancelReason.STALLED):
            self.lives_on = True
            self._front.spawn(self._settle())
            raise ClientLeft
        self._end_without_process()
        await self.break_off(process_ended() if reason is None else RequestCancelled(reason, self.request.usage()))

    def _note_move(self) -> None:
        """Note that what the process may have of the answer is not the answer, and begin to count anew without it."""
        assert self.request.process is not None
        given_away = self.request.process.given_away
        if len(given_away) > MOST_GIVEN_AWAY:
            given_away.clear()
        given_away |= {(self.request.owner, name) for name in self.request.found_by}
        self._is_seen = False
        if self.left_at is not None:
            self.left_at = time.monotonic()  # clients that have taken its stream up again have to do so once more

    async def break_off(self, error: Exception) -> None:
        """End the request, and the client's answer, if that has begun; else raise the error."""
        if self._answer.head is not None:
            self._end_without_process()
        await self._delivery.break_off(error)

    def _end_without_process(self) -> None:
        if not self.request.ended.done():
            self._requests.conclude(self.request, FinishReason.ERROR, error="the model's process ended")

    async def _settle(self) -> None:
        """Write the ending when the process, which has seen the connection's end, says that it has stopped."""
        answer = None
        try:
            with suppress(Broken):
                answer = await self._stopped_in_process()
        finally:
            self._conclude_as_told(answer)

    def _conclude_as_told(self, answer: CancelAnswer | None) -> None:
        """Write the ending of a cancelled request by the answer to its cancel, unless it is written."""
        if self.request.ended.done():
            return
        if answer is not None:
            self.request.take_usage(answer["usage"])
            self.request.status = RequestStatus(answer["phase"])
        self._requests.conclude(self.request, FinishReason.CANCELLED)


def has_stopped(answer: CancelAnswer) -> bool:
    return answer["cancel_latency_ms"] is not None or answer["outcome"] != "cancelled"
