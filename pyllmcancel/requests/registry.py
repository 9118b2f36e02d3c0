"""The registry of requests: the live ones, the waiting ones, supersede keys, families. All are under one lock.

A request is listed from its arrival on. Until it is accepted, the thread that does some work for it is responsible for
it, and between two pieces of work it can be withdrawn by a thread that cancels it. It then waits in the queue until the
engine thread, or a thread that cancels it, takes it out. That thread is then responsible for it, and ends it. While a
step runs, the engine thread offers the running requests that the step does not compute: a thread that cancels one of
them takes that one over in the same way. The registry is the one place where threads meet: each method is one short
critical section.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, EngineDiedError, InvalidRequestError, UsageError
from pyllmcancel.events import Ending, RequestStatus
from pyllmcancel.requests.request import Names, Request
from pyllmcancel.requests.tables import Accepted, GiveUp, Tables
from pyllmcancel.requests.waiting_queue import WaitingQueue

# Foreground requests are those that are not idle. Idle requests wait for those that prepare, this many seconds from
# their arrival: a client may send its body slowly.
PREPARING_SECONDS = 1.0


class Registry(Tables):
    """Accepts, hands over and forgets requests; the limits are those of `WaitingQueue`, for each owner."""

    def __init__(
        self, max_queue: int, max_running: int | None = None, max_queue_tokens: int | None = None, history: int = 256
    ) -> None:
        super().__init__(WaitingQueue(max_queue, max_running, max_queue_tokens), history)
        self._changed = threading.Condition(self._lock)
        # Requests that are computed elsewhere, each with the function that reports its cancel, called likewise.
        self._given_out: dict[Request, GiveUp] = {}
        self._offered: set[Request] = set()  # running requests that the running step does not compute
        self._withdrawn: set[Request] = set()  # requests among those that their cancellers are about to end
        self._news = False  # set for the engine thread, which clears it when it looks
        self.closed = False  # this and the next are written under the lock
        self.died_of: BaseException | None = None  # the error that the engine thread has died of
        # Called with the lock held whenever there is news for the engine thread, so it must be quick. Set once.
        self.forbid_ahead: Callable[[], object] = lambda: None
        # Called likewise when foreground requests have come, or may go on. Set by each turn of the engine thread.
        self.on_foreground: Callable[[], object] = lambda: None

    # -- into and out of the tables -----------------------------------------------------------------------------------

    def arrive(self, request: Request) -> Accepted:
        """List a request that has to be prepared, or raise and change nothing."""
        with self._lock:
            self._check_open()
            self._arrive(request)
            self._preparing[request] = None
            self._note_foreground(request)
            self._keys.prepare(request)
            return self._effects(self._cancelled_on_arrival(request))

    def name(self, request: Request, names: Names) -> Accepted:
        """Note the groups of a request in preparation, or raise and leave it without any: RequestCancelled, too."""
        with self._lock:
            self._check_preparing(request)
            self._families.retract(request)
            self._keys.remove(request)
            request.session, request.parent, request.supersede, request.priority = names
            self._families.join(request)  # may raise
            self._note_foreground(request)
            if request.is_idle:
                self._tell()  # it was not known to be, and other idle ones may have waited for it
            self._keys.prepare(request)
            return self._effects(self._cancelled_on_arrival(request))

    def begin_work(self, request: Request, give_up: GiveUp) -> None:
        """Make the caller responsible for a request in preparation until `end_work`, which any thread may call.

        A cancel calls `give_up`, which must be quick, from any thread. The request ends when the work has stopped; a
        request without any work in progress ends at once. RequestCancelled if the request was cancelled before.
        """
        with self._lock:
            self._check_preparing(request)
            self._preparing[request] = give_up

    def end_work(self, request: Request) -> bool:
        """Note that the work has stopped; return True if the caller has to end the request, since it is cancelled."""
        with self._lock:
            if request not in self._preparing:
                return False
            self._preparing[request] = None
            return request.cancellation.requested and self._withdraw(request)

    def _check_preparing(self, request: Request, *, may_be_new: bool = False) -> None:
        if request.cancellation.requested:
            raise request.cancel_error()
        if request.cancellation.sealed or not (may_be_new or request in self._preparing):
            raise UsageError("this request is not in preparation")

    def refuse(self, request: Request) -> bool:
        """Drop a request in preparation; see `Arrivals.refuse`."""
        with self._lock:
            is_unattended = request in self._preparing and self._preparing[request] is None
            if not is_unattended or not request.cancellation.refuse():
                return False
            del self._preparing[request], self._requests[request.owner, request.id]
            self._families.retract(request)
            self._keys.remove(request)
            if not request.is_idle and self._has_idle:
                self._tell()  # they may go on
            return True

    def accept(self, request: Request, give_up: GiveUp | None = None) -> Accepted:
        """Have a request wait for its turn, or raise and change nothing. With `give_up` it does not wait: it is
        computed elsewhere, as by `give_out`.

        A request that is not listed arrives with this. RequestCancelled is raised for one that was cancelled while it
        was prepared. Of two requests with one key, the one that arrived earlier is cancelled. That is the new request
        if it took longer to prepare.
        """
        with self._lock:
            self._check_preparing(request, may_be_new=True)
            self._check_open()
            has_arrived = request in self._preparing
            if not has_arrived:
                self._check_id(request)
            if give_up is None:
                self._check_queue(request)
            if not has_arrived:
                self._arrive(request)
            self._preparing.pop(request, None)
            superseding = self._keys.install(request)
            request.status = RequestStatus.WAITING
            if give_up is None:
                self._waiting.append(request)
                self._note_foreground(request)
            else:
                self._given_out[request] = give_up
            older = self._keys.preparing(request.owner, request.supersede)
            rivals = [one for one in older if one.arrived_at < request.arrived_at]
            cancelled = [one for one in rivals if self._supersede(one, request.id)]
            if superseding is not None and self._supersede(*superseding):
                cancelled.append(superseding[0])
            if not has_arrived:
                cancelled += self._cancelled_on_arrival(request)
            self._tell()
            return self._effects(cancelled)

    def give_out(self, request: Request, give_up: GiveUp) -> None:
        """Take a waiting request out of the queue, to be computed elsewhere: the caller is responsible for it.

        `give_up` is called once, from any thread, when it is cancelled, with the lock held.
        """
        with self._lock:
            if self._waiting.withdraw(request):
                self._given_out[request] = give_up

    def _check_id(self, request: Request) -> None:
        if (request.owner, request.id) in self._requests:
            raise InvalidRequestError(f"request id {request.id!r} is in use by a request that has not ended", "id")

    def _arrive(self, request: Request) -> None:
        self._check_id(request)
        self._families.join(request)  # may raise
        self._requests[request.owner, request.id] = request

    def _effects(self, cancelled: Sequence[Request]) -> Accepted:
        return Accepted(tuple(cancelled), tuple(one for one in cancelled if self._withdraw(one)))

    @staticmethod
    def _supersede(older: Request, by: str) -> bool:
        """Cancel a request in favour of another; return whether this call decided its fate."""
        decided = older.cancellation.request(CancelReason.SUPERSEDED)
        if decided:
            older.superseded_by = by
        return decided

    def _check_open(self) -> None:
        if self.died_of is not None:
            raise EngineDiedError(self.died_of)
        if self.closed:
            raise EngineClosedError("the engine is shutting down")

    def _check_queue(self, request: Request) -> None:
        # Only one of two requests with one key stays in the queue, so that a full queue has room for the second.
        rival = self._keys.newest(request.owner, request.supersede)
        leaves = rival is not None and rival in self._waiting and rival.is_idle == request.is_idle
        self._waiting.check(request, n_leaving=int(leaves))
        self._waiting.check_tokens(request, rival)

    def _cancelled_on_arrival(self, request: Request) -> list[Request]:
        """Cancel a request that is held, or whose family was cancelled since; return it if this decided its fate."""
        session = self._families.of_request(request)
        lineage = () if session is None else tuple(session.lineage())
        names = [member.name for member in lineage]
        held = self._holds.reach(request.owner, request.id, request.arrived_at, names)
        if not held and not any(member.cancels(request) for member in lineage):
            return []
        return [request] if request.cancellation.request(CancelReason.EXPLICIT) else []

    def withdraw(self, request: Request) -> bool:
        """Take a cancelled request over, to end it, if nobody is responsible for it: it waits, is offered, or is in
        preparation without any work in progress. Work in progress is given up, and whoever does it ends the request.
        """
        with self._lock:
            return self._withdraw(request)

    def _withdraw(self, request: Request) -> bool:
        give_up = self._preparing.get(request) or self._given_out.get(request)
        if give_up is not None:
            give_up()
            return False
        is_unattended = request in self._preparing or request in self._offered
        withdrawn = self._waiting.withdraw(request) or is_unattended
        if withdrawn:
            self._preparing.pop(request, None)
            self._offered.discard(request)
            self._withdrawn.add(request)
        return withdrawn

    def offer(self, requests: Iterable[Request]) -> list[Request]:
        """Let cancellers take over these running requests until `take_back`; called by the engine thread.

        Returns those that are cancelled by now. They are not offered: the engine thread has to end them.
        """
        with self._lock:
            cancelled = [request for request in requests if request.cancellation.requested]
            self._offered.update(set(requests).difference(cancelled))
            return cancelled

    def take_back(self, requests: Iterable[Request]) -> list[Request]:
        """End the offer. Return the requests that ended meanwhile: the engine thread only gives their slots back."""
        with self._lock:
            taken = [request for request in requests if request not in self._offered]
            self._offered.clear()
            return taken

    def take_next(
        self, choose: Callable[[Sequence[Request]], Request | None], *, foreground_runs: bool = False
    ) -> Request | None:
        """Hand a waiting request to the engine thread: the one that `choose` selects from the next request of each
        owner. Idle requests do not start while foreground requests wait, or prepare, or if `foreground_runs`.

        The order of the owners, in which the one last served is last, only breaks ties. `choose` must be quick, and
        must not call the registry.
        """
        with self._lock:
            heads = self._waiting.heads()
            foreground_comes = foreground_runs or self._foreground_comes()
            heads = [one for one in heads if not one.is_idle or not (foreground_comes or one.held_by_front)]
            chosen = choose(heads) if heads else None
            if chosen is not None:
                self._waiting.take(chosen)
            return chosen

    def wait_for_work(self, timeout: float | None = None, *, has_paused: bool = False) -> bool | None:
        """Block the idle engine thread until there is news: a request came, ended or was cancelled.

        A waiting request counts as news once, since admitting it may be impossible before a paused request has ended.
        Returns False once the registry is closed and no request waits or is paused. Returns None if `timeout` seconds
        pass first.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._news or self._is_over(has_paused=has_paused), timeout)
            news, self._news = self._news, False
            return False if self._is_over(has_paused=has_paused) else True if news else None

    def _is_over(self, *, has_paused: bool) -> bool:
        return self.closed and not has_paused and not len(self._waiting)

    def wake(self) -> None:
        """Note a change that the engine thread may be waiting for; may be called from any thread. If there are
        foreground requests, a step of idle ones is aborted, since one of those may go on now.
        """
        with self._lock:
            if not all(request.is_idle for request in self._requests.values()):
                self.on_foreground()
            self._tell()

    @property
    def foreground_comes(self) -> bool:
        """True if foreground requests wait, or have arrived less than `PREPARING_SECONDS` ago and prepare."""
        with self._lock:
            return self._foreground_comes()

    @property
    def has_foreground(self) -> bool:
        """True if foreground requests wait, or prepare for however long."""
        with self._lock:
            return self._waiting.has_foreground or not all(request.is_idle for request in self._preparing)

    @property
    def _has_idle(self) -> bool:
        return any(request.is_idle for request in self._requests.values())

    def _foreground_comes(self) -> bool:
        since = time.monotonic() - PREPARING_SECONDS
        preparing = (one for one in self._preparing if one.arrived_at > since)
        return self._waiting.has_foreground or not all(one.is_idle for one in preparing)

    def _note_foreground(self, request: Request) -> None:
        if not request.is_idle:
            self.on_foreground()

    def _tell(self) -> None:
        self._news = True
        self.forbid_ahead()
        self._changed.notify_all()

    def seal(self, request: Request) -> CancelReason | None:
        """Close the request to cancels and free its key, in one critical section; called by the responsible thread.

        From here on the request is not listed. If it were sealed outside the lock, a newer request of its key could not
        cancel it, and for a moment both would live.
        """
        with self._lock:
            self._keys.remove(request)
            self._families.leave(request)
            return request.cancellation.seal()

    def forget(self, request: Request, ending: Ending) -> None:
        """Move the sealed request, which has ended, from every table into the history."""
        with self._lock:
            self._requests.pop((request.owner, request.id), None)
            self._withdrawn.discard(request)
            self._given_out.pop(request, None)
            self._preparing.pop(request, None)
            self._waiting.forget(request)
            if self._waiting.has_foreground:  # this one may have been in their way
                self.on_foreground()
            self._history[request.owner].append(request.summary(ending))
            self._tell()

    def close(self) -> None:
        """Accept no more requests."""
        with self._lock:
            self.closed = True
            self._changed.notify_all()

    def take_all(self, died_of: BaseException) -> list[Request]:
        """Accept no more requests, and return all that the engine thread, which dies of `died_of`, has to end."""
        with self._lock:
            self.closed, self.died_of = True, died_of
            self._offered.clear()
            self._changed.notify_all()
            apart = self._withdrawn.union(self._preparing)
            taken = [request for request in self._requests.values() if request not in apart]
            for request in taken:
                self._waiting.withdraw(request)
            return taken

    def wait_until_empty(self, timeout: float) -> bool:
        """Block until every accepted request has ended; False if `timeout` seconds pass first."""
        with self._lock:
            return self._changed.wait_for(lambda: len(self._requests) == len(self._preparing), timeout)
