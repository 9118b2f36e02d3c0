"""The registry of requests: the live ones, the waiting ones, supersede keys, families. All are under one lock.

A request waits in the queue until the engine thread, or a thread that cancels it, takes it out. That thread is then
responsible for it, and ends it. While a step runs, the engine thread offers the running requests that the step does not
compute: a thread that cancels one of them takes that one over in the same way. The registry is the one place where
threads meet: each method is one short critical section.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, EngineDiedError, InvalidRequestError
from pyllmcancel.requests.families import Families
from pyllmcancel.requests.holds import Holds
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.requests.supersede_keys import SupersedeKeys
from pyllmcancel.requests.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from pyllmcancel.events import Ending
    from pyllmcancel.requests.families import Session, SessionSummary
    from pyllmcancel.requests.request import Rank, Request, RequestSummary


class Counts(NamedTuple):
    """Live requests, and sessions that have any. Cancelled requests are counted apart until they have ended."""

    waiting: int
    running: int
    cancelling: int
    sessions: int


class Accepted(NamedTuple):
    """The effects of an arrival.

    `cancelled` are the requests that the arrival cancelled. Of two requests with one key that is the earlier one, which
    may be the new request itself. The new request is also among them if it was held, or if its family had been
    cancelled. `withdrawn` are the cancelled requests that were waiting: the caller is responsible for these, and has to
    end them.
    """

    cancelled: tuple[Request, ...]
    withdrawn: tuple[Request, ...]


class Heeded(NamedTuple):
    """The effects of a request that another process has accepted.

    `newer` is the newest request of the key that is known here, if it is newer; the rest is as for an arrival.
    """

    newer: Rank | None
    accepted: Accepted


class Registry:
    """Accepts, hands over and forgets requests.

    Parameters
    ----------
    max_queue, max_running
        Limits of one owner's waiting requests, and of its running ones.
    history
        The number of one owner's ended requests to remember.
    """

    def __init__(self, max_queue: int, max_running: int | None = None, history: int = 256) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # The lock guards all of these.
        self._waiting = WaitingQueue(max_queue, max_running)
        self._keys = SupersedeKeys()
        self._families = Families()
        self._holds = Holds()
        self._requests: dict[tuple[str, str], Request] = {}  # by owner and id: accepted and not ended
        self._offered: set[Request] = set()  # running requests that the running step does not compute
        self._withdrawn: set[Request] = set()  # requests among those that their cancellers are about to end
        self._history = defaultdict[str, deque["RequestSummary"]](lambda: deque(maxlen=history))
        self._news = False  # set for the engine thread, which clears it when it looks
        self._closed = False
        self._died_of: BaseException | None = None
        # Called with the lock held whenever there is news for the engine thread, so it must be quick. Set once.
        self.ring: Callable[[], object] = lambda: None

    # -- into and out of the tables -----------------------------------------------------------------------------------

    def accept(self, request: Request) -> Accepted:
        """Accept a request, or raise and change nothing.

        Of two requests with one key, the one that arrived earlier is cancelled. That is the new request if it took
        longer to prepare.
        """
        with self._lock:
            self._check(request)
            self._families.join(request)  # may raise
            superseding = self._keys.install(request)
            self._requests[request.owner, request.id] = request
            self._waiting.append(request)
            cancelled = []
            if superseding is not None and self._supersede(*superseding):
                cancelled.append(superseding.older)
            if self._is_cancelled_on_arrival(request) and request.cancellation.request(CancelReason.EXPLICIT):
                cancelled.append(request)
            self._tell()
            return Accepted(tuple(cancelled), tuple(old for old in cancelled if self._withdraw(old)))

    @staticmethod
    def _supersede(older: Request, by: str) -> bool:
        """Cancel a request in favour of another; return whether this call decided its fate."""
        decided = older.cancellation.request(CancelReason.SUPERSEDED)
        if decided:
            older.superseded_by = by
        return decided

    def heed(self, owner: str, key: str, rank: Rank) -> Heeded:
        """Cancel the request of this key if it is older than one that another process has accepted.

        An older request that is accepted later is cancelled, too. Both processes compare the same ranks, so they agree
        which of two requests is the older one, and exactly the newest of any number remains.
        """
        with self._lock:
            newer = self._keys.newer_than(owner, key, rank)
            self._keys.remember(owner, key, rank)
            rival = self._keys.newest(owner, key)
            if rival is None or rival.rank >= rank or not self._supersede(rival, rank.id):
                return Heeded(newer, Accepted((), ()))
            self._tell()
            return Heeded(newer, Accepted((rival,), (rival,) if self._withdraw(rival) else ()))

    def _check(self, request: Request) -> None:
        if self._died_of is not None:
            raise EngineDiedError(self._died_of)
        if self._closed:
            raise EngineClosedError("the engine is shutting down")
        if (request.owner, request.id) in self._requests:
            raise InvalidRequestError(f"request id {request.id!r} is in use by a request that has not ended", "id")
        # Only one of two requests with one key stays in the queue, so that a full queue has room for the second.
        rival = self._keys.rival(request)
        self._waiting.check(request.owner, n_leaving=int(rival is not None and rival in self._waiting))

    def _is_cancelled_on_arrival(self, request: Request) -> bool:
        """Return whether the request is held, or its family was cancelled after its arrival."""
        session = self._families.of_request(request)
        lineage = () if session is None else tuple(session.lineage())
        names = [member.name for member in lineage]
        held = self._holds.reach(request.owner, request.id, request.arrived_at, names)
        return held or any(member.cancels(request) for member in lineage)

    def withdraw(self, request: Request) -> bool:
        """Take a waiting or an offered request over, to end it; False if it is neither, or not any more."""
        with self._lock:
            return self._withdraw(request)

    def _withdraw(self, request: Request) -> bool:
        withdrawn = self._waiting.withdraw(request) or request in self._offered
        if withdrawn:
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
        """Return those of the requests that were taken over, or not offered: each ends without the engine thread's
        next turn.
        """
        with self._lock:
            taken = [request for request in requests if request not in self._offered]
            self._offered.clear()
            return taken

    def take_next(self, choose: Callable[[Sequence[Request]], Request | None]) -> Request | None:
        """Hand a waiting request to the engine thread: the one that `choose` selects from the next request of each
        owner.

        The order of the owners, in which the one last served is last, only breaks ties. `choose` must be quick, and
        must not call the registry.
        """
        with self._lock:
            heads = self._waiting.heads()
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
        return self._closed and not has_paused and not len(self._waiting)

    def wake(self) -> None:
        """Note a change that the engine thread may be waiting for; may be called from any thread."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        self._news = True
        self.ring()
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
            self._waiting.forget(request)
            self._history[request.owner].append(request.summary(ending))
            self._tell()

    def close(self) -> None:
        """Accept no more requests."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def take_all(self, died_of: BaseException) -> list[Request]:
        """Accept no more requests, and hand all waiting ones to the engine thread, which dies of `died_of`.

        Returns all requests that the engine thread has to end then.
        """
        with self._lock:
            self._closed, self._died_of = True, died_of
            self._offered.clear()
            self._changed.notify_all()
            taken = [request for request in self._requests.values() if request not in self._withdrawn]
            for request in taken:
                self._waiting.withdraw(request)
            return taken

    @property
    def died_of(self) -> BaseException | None:
        """The error that the engine thread has died of, or None."""
        return self._died_of

    def wait_until_empty(self, timeout: float) -> bool:
        """Block until every accepted request has ended; False if `timeout` seconds pass first."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._requests, timeout)

    # -- looking for requests and sessions; an `owner` of None means all owners ---------------------------------------

    def find(self, request_id: str, hold: float = 0.0, owner: str = NO_OWNER) -> Request | RequestSummary | None:
        """Return a live request, or the summary of an ended one.

        If there is neither, and `hold` is positive, a request of this id that arrives within `hold` seconds will be
        cancelled on its arrival.
        """
        with self._lock:
            remembered = reversed(self._history.get(owner, ()))
            found = self._requests.get((owner, request_id)) or next(
                (old for old in remembered if old.id == request_id), None
            )
            if found is None and hold > 0.0:
                self._holds.hold_request(owner, request_id, hold)
            return found

    def owners_of(self, ids: Set[str]) -> set[str]:
        """Return the owners that have a request of one of these ids, live or remembered."""
        with self._lock:
            live = {owner for owner, request_id in self._requests if request_id in ids}
            return live | {owner for owner, history in self._history.items() if any(old.id in ids for old in history)}

    def hold_arrived(self, ids: Iterable[str], owner: str = NO_OWNER) -> None:
        """Cancel the requests of these ids on their acceptance, if they have arrived by now. QueueFullError if the
        owner has too many holds.
        """
        with self._lock:
            for request_id in ids:
                self._holds.hold_request(owner, request_id, 0.0)

    def newest(self, key: str, owner: str = NO_OWNER) -> Request | None:
        """Return the live request of a supersede key."""
        with self._lock:
            return self._keys.newest(owner, key)

    def declare(self, session: str, parent: str | None = None, owner: str = NO_OWNER) -> None:
        """Make a session known before its request is accepted; raises as `Families.declare`."""
        with self._lock:
            self._families.declare(owner, session, parent)

    def family(
        self, session: str, owner: str = NO_OWNER, *, descendants: bool = True
    ) -> dict[str, list[Request]] | None:
        """Return the requests of a session and its descendants that have not ended, by session; None if the session
        is unknown.
        """
        with self._lock:
            return self._family(self._families.find(owner, session), descendants=descendants)

    def family_to_cancel(
        self,
        session: str,
        owner: str = NO_OWNER,
        *,
        descendants: bool = True,
        hold: float = 0.0,
        known_elsewhere: bool = False,
    ) -> dict[str, list[Request]] | None:
        """As `family`, for a caller that cancels all of these requests.

        Requests that have arrived, and are accepted later, will be cancelled on their acceptance. For an unknown
        session this holds only if it is `known_elsewhere`. If `hold` is positive, all requests that arrive within
        `hold` seconds will be cancelled, even for an unknown session.
        """
        with self._lock:
            found = self._families.find(owner, session)
            if hold > 0.0 or (known_elsewhere and found is None):
                self._holds.hold_session(owner, session, hold, descendants=descendants)
            if found is not None:
                found.note_cancel(descendants=descendants)
            return self._family(found, descendants=descendants)

    def check_room_to_hold(self, sessions: Collection[str], owner: str = NO_OWNER) -> None:
        """Raise QueueFullError if these cannot all be held at once."""
        with self._lock:
            self._holds.check_room(owner, sessions)

    @staticmethod
    def _family(session: Session | None, *, descendants: bool) -> dict[str, list[Request]] | None:
        if session is None:
            return None
        members = session.family() if descendants else (session,)
        return {member.name: list(member.live.values()) for member in members}

    def sessions(self, owner: str | None = NO_OWNER) -> list[SessionSummary]:
        """Return the sessions, the most recently used first."""
        with self._lock:
            return [session.summary() for session in self._families.sessions(owner)]

    def session(self, name: str, owner: str = NO_OWNER) -> SessionSummary | None:
        with self._lock:
            found = self._families.find(owner, name)
            return None if found is None else found.summary()

    def requests(self, owner: str | None = None) -> list[Request]:
        """Return all requests that have not ended, oldest first."""
        with self._lock:
            return self._not_sealed(owner)

    def _not_sealed(self, owner: str | None) -> list[Request]:
        return [
            request
            for request in self._requests.values()
            if not request.cancellation.sealed and owner in (None, request.owner)
        ]

    def history(self, owner: str | None = None) -> list[RequestSummary]:
        """Return the last ended requests, newest first."""
        with self._lock:
            if owner is not None:
                return list(reversed(self._history.get(owner, ())))
            ended = [summary for history in self._history.values() for summary in history]
        return sorted(ended, key=lambda summary: summary.created_at + summary.seconds, reverse=True)

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of waiting and of other requests that have not ended. The log's: at no cost per request."""
        with self._lock:
            waiting = len(self._waiting)
            return waiting, len(self._requests) - waiting

    def counts(self, owner: str | None = None) -> Counts:
        with self._lock:
            requests = self._not_sealed(owner)
            cancelling = sum(request.cancellation.requested for request in requests)
            waiting = sum(
                not request.cancellation.requested and owner in (None, request.owner) for request in self._waiting
            )
            running = len(requests) - cancelling - waiting
            return Counts(waiting, running, cancelling, self._families.count_live(owner))
