"""The registry: which requests there are, which wait, which is the newest of its session. All under one lock.

A request is owned by the waiting queue, then by the engine thread. The registry is where ownership changes hands, so it
is the one place where threads meet: each method is one short critical section, and none of them calls out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, EngineDiedError, InvalidRequestError, QueueFullError
from pyllmcancel.sessions import SessionMap
from pyllmcancel.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from pyllmcancel.events import Ending
    from pyllmcancel.request import Request, RequestSummary

MAX_HOLDS = 1024
LONGEST_PREPARATION = 60.0  # seconds from a request's arrival to its acceptance


class Counts(NamedTuple):
    """Live requests (cancelled ones are counted apart, until they have ended)."""

    waiting: int
    running: int
    cancelling: int
    sessions: int


class Accepted(NamedTuple):
    """What an arrival brought about.

    `cancelled` are the requests that it cancelled: its session's former newest, or itself, if its id was held.
    `withdrawn` are those of them that were waiting, which makes them the caller's to end.
    """

    cancelled: tuple[Request, ...]
    withdrawn: tuple[Request, ...]


class Registry:
    """Accepts, hands over and forgets requests."""

    def __init__(self, max_queue: int, history: int = 256) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # All guarded by the lock.
        self._waiting = WaitingQueue(max_queue)
        self._sessions = SessionMap()
        self._requests: dict[str, Request] = {}  # accepted and not ended
        self._withdrawn: set[Request] = set()  # of those: owned by their cancellers, which are about to end them
        self._history: deque[RequestSummary] = deque(maxlen=history)
        self._holds: dict[str, float] = {}  # ids and sessions to cancel on arrival, and until when
        self._closed = False
        self._died_of: BaseException | None = None

    def accept(self, request: Request) -> Accepted:
        """Take a request in, as its session's newest, or raise and change nothing."""
        with self._lock:
            self._check(request)
            older, newer = self._session_order(request)
            self._requests[request.id] = request
            self._waiting.append(request)
            cancelled = []
            if older is not None and newer is not None and older.cancellation.request(CancelReason.SUPERSEDED):
                older.superseded_by = newer.id
                cancelled.append(older)
            if self._is_held(request):
                request.cancellation.request(CancelReason.EXPLICIT)
                cancelled.append(request)
            self._changed.notify_all()
            return Accepted(tuple(cancelled), tuple(old for old in cancelled if self._withdraw(old)))

    def _session_order(self, request: Request) -> tuple[Request | None, Request | None]:
        """The older and the newer one of a session that has two now; the newer is installed.

        Newer is the one that arrived later: a request that took longer to prepare must not supersede one that its
        client sent after it.
        """
        newest = self._sessions.newest(request.session) if request.session is not None else None
        if newest is not None and newest.arrived_at > request.arrived_at:
            return request, newest
        return self._sessions.install(request), request

    def _is_held(self, request: Request) -> bool:
        keys = [request.id] if request.session is None else [request.id, _session_key(request.session)]
        return max(self._holds.pop(key, 0.0) for key in keys) > request.arrived_at

    def _check(self, request: Request) -> None:
        if self._died_of is not None:
            raise EngineDiedError(self._died_of)
        if self._closed:
            raise EngineClosedError("the engine is shutting down")
        if request.id in self._requests:
            raise InvalidRequestError(f"request id {request.id!r} is in use by a request that has not ended", "id")
        # A session's newest takes the place of the one that it supersedes, in a full queue too.
        previous = self._sessions.newest(request.session) if request.session is not None else None
        replaces = previous is not None and previous in self._waiting
        if len(self._waiting) - replaces >= self._waiting.limit:
            raise QueueFullError(f"{self._waiting.limit} requests are waiting already")

    def withdraw(self, request: Request) -> bool:
        """Take a waiting request out, to end it; False if it is not, or no longer, waiting."""
        with self._lock:
            return self._withdraw(request)

    def _withdraw(self, request: Request) -> bool:
        withdrawn = self._waiting.withdraw(request)
        if withdrawn:
            self._withdrawn.add(request)
        return withdrawn

    def take_oldest(self, admissible: Callable[[Request], bool]) -> Request | None:
        """Hand the oldest waiting request to the engine thread, if `admissible` says so."""
        with self._lock:
            oldest = self._waiting.oldest()
            if oldest is None or not admissible(oldest):
                return None
            self._waiting.withdraw(oldest)
            return oldest

    def wait_for_work(self, timeout: float | None = None) -> bool | None:
        """Block until a request waits; False once the registry is closed and none waits.

        None if `timeout` seconds pass before either.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) > 0, timeout)
            return True if len(self._waiting) > 0 else False if self._closed else None

    def seal(self, request: Request) -> CancelReason | None:
        """Its owner ends it: closed to cancels, and its session open to others, in one critical section.

        From here on it is not listed. Were it sealed outside, a newer one of its session could not cancel it, and for a
        moment both would live.
        """
        with self._lock:
            self._sessions.remove(request)
            return request.cancellation.seal()

    def forget(self, request: Request, ending: Ending) -> None:
        """The sealed request has ended: out of every table, into the history."""
        with self._lock:
            self._requests.pop(request.id, None)
            self._withdrawn.discard(request)
            self._history.append(request.summary(ending))
            self._changed.notify_all()

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
        """What the engine thread has died of."""
        return self._died_of

    def wait_until_empty(self, timeout: float) -> bool:
        """Block until every accepted request has ended; False if `timeout` seconds pass first."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._requests, timeout)

    def find(self, request_id: str, hold: float = 0.0) -> Request | RequestSummary | None:
        """A live request, or what is remembered of an ended one.

        If there is neither, and `hold` is positive, a request of this id that arrives within `hold` seconds will be
        cancelled on its arrival.
        """
        with self._lock:
            found = self._requests.get(request_id) or next(
                (old for old in reversed(self._history) if old.id == request_id), None
            )
            if found is None and hold > 0.0:
                self._hold(request_id, hold)
            return found

    def _hold(self, request_id: str, seconds: float) -> None:
        now = time.monotonic()
        # One that has run out is kept, if there is room, for requests that arrived before and are being prepared.
        self._holds = {held: until for held, until in self._holds.items() if until > now - LONGEST_PREPARATION}
        if len(self._holds) >= MAX_HOLDS:
            self._holds = {held: until for held, until in self._holds.items() if until > now}
        if len(self._holds) >= MAX_HOLDS:
            raise QueueFullError("too many ids are held for cancellation")
        self._holds[request_id] = now + seconds

    def newest(self, session: str, hold: float = 0.0) -> Request | None:
        """A session's live request. If it has none, and `hold` is positive, its next one within `hold` seconds will be
        cancelled on its arrival.
        """
        with self._lock:
            newest = self._sessions.newest(session)
            if newest is None and hold > 0.0:
                self._hold(_session_key(session), hold)
            return newest

    def requests(self) -> list[Request]:
        """All that have not ended, oldest first."""
        with self._lock:
            return self._not_sealed()

    def _not_sealed(self) -> list[Request]:
        return [request for request in self._requests.values() if not request.cancellation.sealed]

    def history(self) -> list[RequestSummary]:
        """The last ended ones, newest first."""
        with self._lock:
            return list(reversed(self._history))

    def counts(self) -> Counts:
        with self._lock:
            requests = self._not_sealed()
            cancelling = sum(request.cancellation.requested for request in requests)
            waiting = sum(not request.cancellation.requested for request in self._waiting)
            running = len(requests) - cancelling - waiting
            return Counts(waiting, running, cancelling, len(self._sessions))


def _session_key(session: str) -> str:
    # No request id contains a line feed.
    return f"session\n{session}"
