"""The registry's tables of requests: the live and the ended ones, supersede keys, and holds; and the looks at them.

All are under the registry's lock. A hold is the order to cancel requests of an id or a session that has not come yet.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.families import Families, SessionSummary
from pyllmcancel.requests.request import NO_OWNER, Request, RequestSummary
from pyllmcancel.requests.waiting_queue import WaitingQueue

GiveUp = Callable[[], object]
MAX_HOLDS = 1024  # limit of one owner's holds
LONGEST_PREPARATION = 60.0  # seconds from a request's arrival to its acceptance


class Counts(NamedTuple):
    """Live requests, and sessions that have any. Cancelled requests are counted apart until they have ended."""

    waiting: int
    running: int
    cancelling: int
    sessions: int


class Accepted(NamedTuple):
    """The effects of an arrival, or of an acceptance.

    `cancelled` are the requests that it cancelled. Of two requests with one key that is the earlier one, which may be
    the new request itself. The new request is also among them if it was held, or if its family had been cancelled.
    `withdrawn` are those of them that nobody was responsible for: the caller now is, and has to end them.
    """

    cancelled: tuple[Request, ...]
    withdrawn: tuple[Request, ...]


class Hold(NamedTuple):
    """The times, on the monotonic clock, until which a request, or a session and its descendants, are held."""

    own: float = 0.0
    descendants: float = 0.0


class Holds:
    """The holds of all owners. A hold that was promised to a client stays: a later hold never shortens it."""

    def __init__(self) -> None:
        self._of_owner = defaultdict[str, dict[tuple[str, str], Hold]](dict)  # by the kind, and the id or the name

    def hold(self, owner: str, key: tuple[str, str], seconds: float, *, descendants: bool = False) -> None:
        """Cancel the request of an id, ("request", id), or all requests of a session, ("session", name), that arrive
        within `seconds`; QueueFullError if there are too many holds.
        """
        held, now = self._of_owner[owner], time.monotonic()
        # An expired hold is kept, if there is room, for requests that arrived before its end and are still being
        # prepared.
        for latest in (now - LONGEST_PREPARATION, now):
            if len(held) >= MAX_HOLDS:
                held = self._of_owner[owner] = {other: hold for other, hold in held.items() if hold.own > latest}
        if len(held) >= MAX_HOLDS and key not in held:
            raise QueueFullError("too many ids are held for cancellation")
        before, until = held.get(key, Hold()), now + seconds
        held[key] = Hold(max(until, before.own), max(until if descendants else 0.0, before.descendants))

    def reach(self, owner: str, request_id: str, arrived_at: float, lineage: Iterable[str]) -> bool:
        """Use up a hold of this id. Return whether a request is held: by its id, its session, or an ancestor of the
        session. `lineage` names the session, its parent, and so on.
        """
        held = self._of_owner.get(owner)
        if held is None:
            return False
        if held.pop(("request", request_id), Hold()).own > arrived_at:
            return True
        holds = [held.get(("session", session), Hold()) for session in lineage]
        return any((hold.descendants if above else hold.own) > arrived_at for above, hold in enumerate(holds))


class SupersedeKeys:
    """The newest request under each key of an owner, and those that are being prepared."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Request] = {}
        self._preparing = defaultdict[tuple[str, str], set[Request]](set)

    def newest(self, owner: str, key: str | None) -> Request | None:
        return None if key is None else self._newest.get((owner, key))

    def prepare(self, request: Request) -> None:
        """Note a request that is not accepted yet: it supersedes none, and is superseded by newer ones."""
        if request.supersede is not None:
            self._preparing[request.owner, request.supersede].add(request)

    def preparing(self, owner: str, key: str | None) -> list[Request]:
        """Return the requests under this key that are not accepted yet."""
        return [] if key is None else list(self._preparing.get((owner, key), ()))

    def install(self, request: Request) -> tuple[Request, str] | None:
        """Give the key of `request`, if it has one, to the newer of its two requests. Return the older request, which
        is to be cancelled, and the id of the newer one.

        The newer request is the one that arrived later. A request that took longer to prepare must not supersede one
        that its client sent later.
        """
        if request.supersede is None:
            return None
        self.remove(request)
        rival = self.newest(request.owner, request.supersede)
        if rival is not None and rival.arrived_at > request.arrived_at:
            return request, rival.id
        self._newest[request.owner, request.supersede] = request
        return None if rival is None else (rival, request.id)

    def remove(self, request: Request) -> None:
        """Forget an ended request, unless a newer one has taken its place."""
        if request.supersede is None:
            return
        key = request.owner, request.supersede
        if self._newest.get(key) is request:
            del self._newest[key]
        if key in self._preparing:
            self._preparing[key].discard(request)
            if not self._preparing[key]:
                del self._preparing[key]


class Tables:
    """The tables, for looks from any thread; the `Registry` changes them. An `owner` of None means all owners. Of each
    owner's ended requests the last are remembered, `history` in number.
    """

    def __init__(self, waiting: WaitingQueue, history: int) -> None:
        self._lock = threading.Lock()
        # The lock guards all of these.
        self._waiting = waiting
        self._keys = SupersedeKeys()
        self._families = Families()
        self._holds = Holds()
        self._requests: dict[tuple[str, str], Request] = {}  # by owner and id: arrived and not ended
        # Requests that are not accepted yet, each with the function that gives up the work in progress for it. The
        # function is called with the lock held, so it must be quick.
        self._preparing: dict[Request, GiveUp | None] = {}
        self._history = defaultdict[str, deque["RequestSummary"]](lambda: deque(maxlen=history))

    def find(self, request_id: str, hold: float = 0.0, owner: str = NO_OWNER) -> Request | RequestSummary | None:
        """Return a live request, or the summary of an ended one.

        If there is neither, and `hold` is positive, a request of this id that arrives within `hold` seconds will be
        cancelled on its arrival.
        """
        with self._lock:
            past = reversed(self._history.get(owner, ()))
            found = self._requests.get((owner, request_id)) or next((old for old in past if old.id == request_id), None)
            if found is None and hold > 0.0:
                self._holds.hold(owner, ("request", request_id), hold)
            return found

    def owners_of(self, ids: Set[str]) -> set[str]:
        """Return the owners that have a request of one of these ids, live or remembered."""
        with self._lock:
            live = {owner for owner, request_id in self._requests if request_id in ids}
            return live | {owner for owner, history in self._history.items() if any(old.id in ids for old in history)}

    def newest(self, key: str, owner: str = NO_OWNER) -> Request | None:
        """Return the accepted live request of a supersede key."""
        with self._lock:
            return self._keys.newest(owner, key)

    def preparing(self, key: str, owner: str = NO_OWNER) -> list[Request]:
        """Return the requests of a supersede key that are not accepted yet."""
        with self._lock:
            return self._keys.preparing(owner, key)

    def family_to_cancel(
        self, session: str, owner: str = NO_OWNER, *, descendants: bool = True, hold: float = 0.0
    ) -> dict[str, list[Request]] | None:
        """Return the live requests of a session and its descendants, by session, for a caller that cancels all of them;
        None if the session is unknown.

        Requests that have arrived, and are accepted later, will be cancelled on their acceptance. If `hold` is
        positive, all requests that arrive within `hold` seconds will be cancelled, even for an unknown session.
        """
        with self._lock:
            found = self._families.find(owner, session)
            if hold > 0.0:
                self._holds.hold(owner, ("session", session), hold, descendants=descendants)
            if found is None:
                return None
            found.note_cancel(descendants=descendants)
            members = found.family() if descendants else (found,)
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

    def accepted(self) -> tuple[list[Request], list[Request]]:
        """Return the waiting requests by owner, and other accepted ones, oldest first; no cancelled, no idle ones."""
        with self._lock:
            waiting = [one for one in self._waiting if not one.is_idle]
            apart = {*self._waiting, *self._preparing}
            others = [one for one in self._requests.values() if one not in apart]
            return waiting, [one for one in others if not (one.cancellation.requested or one.is_idle)]

    def _not_sealed(self, owner: str | None) -> list[Request]:
        return [one for one in self._requests.values() if not one.cancellation.sealed and owner in (None, one.owner)]

    def history(self, owner: str | None = None) -> list[RequestSummary]:
        """Return the last ended requests, newest first."""
        with self._lock:
            if owner is not None:
                return list(reversed(self._history.get(owner, ())))
            ended = [summary for history in self._history.values() for summary in history]
        return sorted(ended, key=lambda summary: summary.created_at + summary.seconds, reverse=True)

    @property
    def load(self) -> tuple[int, int]:
        """The numbers of accepted requests that wait, and of the others. The log's: at no cost per request."""
        with self._lock:
            waiting = len(self._waiting)
            return waiting, len(self._requests) - len(self._preparing) - waiting

    def counts(self, owner: str | None = None) -> Counts:
        with self._lock:
            requests = [request for request in self._not_sealed(owner) if request not in self._preparing]
            cancelling = sum(request.cancellation.requested for request in requests)
            waiting = sum(not one.cancellation.requested and owner in (None, one.owner) for one in self._waiting)
            running = len(requests) - cancelling - waiting
            return Counts(waiting, running, cancelling, self._families.count_live(owner))
