"""The registry: which requests there are, which wait, which supersede, which belong together. All under one lock.

A request waits in the queue until the engine thread, or a thread that cancels it, takes it out. That thread is then
responsible for it, and ends it. Here is the one place where threads meet: each method is one short critical section.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence, Set
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
    """Live requests (cancelled ones are counted apart, until they have ended), and sessions that have any."""

    waiting: int
    running: int
    cancelling: int
    sessions: int


class Accepted(NamedTuple):
    """The effects of an arrival.

    `cancelled` are the requests that it cancelled: of two with one key the one that arrived earlier, which may be
    itself; and itself, if it was held or its family had been cancelled. `withdrawn` are those of them that were
    waiting: the caller is responsible for these, and has to end them.
    """

    cancelled: tuple[Request, ...]
    withdrawn: tuple[Request, ...]


class Heeded(NamedTuple):
    """The effects of a request that another process has accepted.

    `newer` is the newest one of its key that is known here, if there is a newer one; the rest is as of an arrival.
    """

    newer: Rank | None
    accepted: Accepted


class Registry:
    """Accepts, hands over and forgets requests.

    Parameters
    ----------
    max_queue, max_running
        Of one owner: most requests that wait, and that run.
    history
        Ended requests of one owner that are remembered.
    """

    def __init__(self, max_queue: int, max_running: int | None = None, history: int = 256) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # All guarded by the lock.
        self._waiting = WaitingQueue(max_queue, max_running)
        self._keys = SupersedeKeys()
        self._families = Families()
        self._holds = Holds()
        self._requests: dict[tuple[str, str], Request] = {}  # by owner and id: accepted and not ended
        self._withdrawn: set[Request] = set()  # of those: their cancellers are about to end them
        self._history = defaultdict[str, deque["RequestSummary"]](lambda: deque(maxlen=history))
        self._news = False  # for the engine thread, which takes it when it looks
        self._closed = False
        self._died_of: BaseException | None = None
        # Called with the lock held whenever there is news for the engine thread: it must be quick. Set once.
        self.ring: Callable[[], object] = lambda: None

    # -- into and out of the tables -----------------------------------------------------------------------------------

    def accept(self, request: Request) -> Accepted:
        """Take a request in, or raise and change nothing.

        Of two requests with one key the one that arrived earlier is cancelled. That may be this one, if it took longer
        to prepare.
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
        """Cancel a request for that one; whether this decided its fate."""
        decided = older.cancellation.request(CancelReason.SUPERSEDED)
        if decided:
            older.superseded_by = by
        return decided

    def heed(self, owner: str, key: str, rank: Rank) -> Heeded:
        """Another process has accepted a request of this key: the one that is here is cancelled if it is older.

        So is one that arrived before it and is accepted later. Both processes compare the same ranks, so that of two
        requests they agree which one is the older, and of any number exactly the newest remains.
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
        # Of two requests with one key only one stays in the queue, so that a full queue has room for the second.
        rival = self._keys.rival(request)
        self._waiting.check(request.owner, n_leaving=int(rival is not None and rival in self._waiting))

    def _is_cancelled_on_arrival(self, request: Request) -> bool:
        """Return whether it is held, or its family was cancelled after it had arrived."""
        session = self._families.of_request(request)
        lineage = () if session is None else tuple(session.lineage())
        held = self._holds.reach(request, lineage)
        return held or any(member.cancels(request) for member in lineage)

    def withdraw(self, request: Request) -> bool:
        """Take a waiting request out, to end it; False if it is not, or no longer, waiting."""
        with self._lock:
            return self._withdraw(request)

    def _withdraw(self, request: Request) -> bool:
        withdrawn = self._waiting.withdraw(request)
        if withdrawn:
            self._withdrawn.add(request)
        return withdrawn

    def take_next(self, choose: Callable[[Sequence[Request]], Request | None]) -> Request | None:
        """Hand a waiting request to the engine thread: the one that `choose` takes from the next of each owner.

        `choose` decides; their order, in which the owner last taken from is last, only breaks ties. It must be quick,
        and call nothing of the registry.
        """
        with self._lock:
            heads = self._waiting.heads()
            chosen = choose(heads) if heads else None
            if chosen is not None:
                self._waiting.take(chosen)
            return chosen

    def wait_for_work(self, timeout: float | None = None, *, has_paused: bool = False) -> bool | None:
        """Block the engine thread, which computes nothing, until there is news: a request came, ended or was cancelled.

        A request that waits is news once: it may be impossible to admit it before a paused request has ended.
        False once the registry is closed, none waits, and the engine thread has none that is paused. None if `timeout`
        seconds pass before either.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._news or self._is_over(has_paused=has_paused), timeout)
            news, self._news = self._news, False
            return False if self._is_over(has_paused=has_paused) else True if news else None

    def _is_over(self, *, has_paused: bool) -> bool:
        return self._closed and not has_paused and not len(self._waiting)

    def wake(self) -> None:
        """Something has changed that the engine thread may wait for; may be called from any thread."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        self._news = True
        self.ring()
        self._changed.notify_all()

    def seal(self, request: Request) -> CancelReason | None:
        """The responsible thread ends it: closed to cancels, and its key open to others, in one critical section.

        From here on it is not listed. Were it sealed outside, a newer one of its key could not cancel it, and for a
        moment both would live.
        """
        with self._lock:
            self._keys.remove(request)
            self._families.leave(request)
            return request.cancellation.seal()

    def forget(self, request: Request, ending: Ending) -> None:
        """The sealed request has ended: out of every table, into the history."""
        with self._lock:
            self._requests.pop((request.owner, request.id), None)
            self._withdrawn.discard(request)
            self._waiting.forget(request)
            self._history[request.owner].append(request.summary(ending))
            self._tell()

    def close(self) -> None:
        """Accept no more."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def take_all(self, died_of: BaseException) -> list[Request]:
        """Accept no more, and hand all that waits to the engine thread, which dies of `died_of`.

        Returns all that is the engine thread's to end then.
        """
        with self._lock:
            self._closed, self._died_of = True, died_of
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
        """A live request, or what is remembered of an ended one.

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
        """Owners that have a request of one of these ids, live or remembered."""
        with self._lock:
            live = {owner for owner, request_id in self._requests if request_id in ids}
            return live | {owner for owner, history in self._history.items() if any(old.id in ids for old in history)}

    def newest(self, key: str, owner: str = NO_OWNER) -> Request | None:
        """The live request of a supersede key."""
        with self._lock:
            return self._keys.newest(owner, key)

    def declare(self, session: str, parent: str | None = None, owner: str = NO_OWNER) -> None:
        """Have a session known before its request is accepted; raises as `Families.declare`."""
        with self._lock:
            self._families.declare(owner, session, parent)

    def family(
        self, session: str, owner: str = NO_OWNER, *, descendants: bool = True
    ) -> dict[str, list[Request]] | None:
        """The requests of a session and its descendants that have not ended, by session; None if it is not known."""
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
        """As `family`, for a caller that cancels all of it.

        Those that have arrived, and are accepted later, will be cancelled on their acceptance; of a session that is not
        known only if it is `known_elsewhere`. If `hold` is positive, so will all that arrive within `hold` seconds, of
        a session that is not known too.
        """
        with self._lock:
            found = self._families.find(owner, session)
            if hold > 0.0 or (known_elsewhere and found is None):
                self._holds.hold_session(owner, session, hold, descendants=descendants)
            if found is not None:
                found.note_cancel(descendants=descendants)
            return self._family(found, descendants=descendants)

    def check_room_to_hold(self, sessions: Collection[str], owner: str = NO_OWNER) -> None:
        """QueueFullError if these cannot be held all at once."""
        with self._lock:
            self._holds.check_room(owner, sessions)

    @staticmethod
    def _family(session: Session | None, *, descendants: bool) -> dict[str, list[Request]] | None:
        if session is None:
            return None
        members = session.family() if descendants else (session,)
        return {member.name: list(member.live.values()) for member in members}

    def sessions(self, owner: str | None = NO_OWNER) -> list[SessionSummary]:
        """The most recently used first."""
        with self._lock:
            return [session.summary() for session in self._families.sessions(owner)]

    def session(self, name: str, owner: str = NO_OWNER) -> SessionSummary | None:
        with self._lock:
            found = self._families.find(owner, name)
            return None if found is None else found.summary()

    def requests(self, owner: str | None = None) -> list[Request]:
        """All that have not ended, oldest first."""
        with self._lock:
            return self._not_sealed(owner)

    def _not_sealed(self, owner: str | None) -> list[Request]:
        return [
            request
            for request in self._requests.values()
            if not request.cancellation.sealed and owner in (None, request.owner)
        ]

    def history(self, owner: str | None = None) -> list[RequestSummary]:
        """The last ended ones, newest first."""
        with self._lock:
            if owner is not None:
                return list(reversed(self._history.get(owner, ())))
            ended = [summary for history in self._history.values() for summary in history]
        return sorted(ended, key=lambda summary: summary.created_at + summary.seconds, reverse=True)

    def counts(self, owner: str | None = None) -> Counts:
        with self._lock:
            requests = self._not_sealed(owner)
            cancelling = sum(request.cancellation.requested for request in requests)
            waiting = sum(
                not request.cancellation.requested and owner in (None, request.owner) for request in self._waiting
            )
            running = len(requests) - cancelling - waiting
            return Counts(waiting, running, cancelling, self._families.count_live(owner))
