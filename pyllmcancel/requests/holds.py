"""Holds: ids and sessions whose requests are cancelled on arrival, because the cancel came before the request.

Not synchronised: the registry guards it, and the other tables, with one lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from pyllmcancel.errors import QueueFullError

MAX_HOLDS = 1024  # limit of one owner's holds
LONGEST_PREPARATION = 60.0  # seconds from a request's arrival to its acceptance


class SessionHold(NamedTuple):
    """The times, on the monotonic clock, until which a session and its descendants are held."""

    own: float
    descendants: float


NOT_HELD = SessionHold(0.0, 0.0)


class OwnerHolds:
    """The holds of one owner."""

    def __init__(self) -> None:
        self.requests: dict[str, float] = {}  # until when, by id
        self.sessions: dict[str, SessionHold] = {}

    def __len__(self) -> int:
        return len(self.requests) + len(self.sessions)

    def drop_expired(self, now: float) -> None:
        self.requests = {held: until for held, until in self.requests.items() if until > now}
        self.sessions = {held: hold for held, hold in self.sessions.items() if hold.own > now}


class Holds:
    """The holds of all owners. A hold that was promised to a client stays: a later hold never shortens it."""

    def __init__(self) -> None:
        self._of_owner: dict[str, OwnerHolds] = {}

    def hold_request(self, owner: str, request_id: str, seconds: float) -> None:
        """Cancel the request of this id that arrives within `seconds`. QueueFullError if the owner has too many
        holds.
        """
        held = self._with_room(owner, request_id).requests
        held[request_id] = max(time.monotonic() + seconds, held.get(request_id, 0.0))

    def hold_session(self, owner: str, session: str, seconds: float, *, descendants: bool) -> None:
        """Cancel all requests of a session that arrive within `seconds`; with 0, those that have arrived by now.

        Raises QueueFullError if the owner has too many holds.
        """
        held = self._with_room(owner, session).sessions
        until, before = time.monotonic() + seconds, held.get(session, NOT_HELD)
        below = max(until, before.descendants) if descendants else before.descendants
        held[session] = SessionHold(max(until, before.own), below)

    def reach(self, owner: str, request_id: str, arrived_at: float, lineage: Iterable[str]) -> bool:
        """Use up a hold of this id. Return whether a request is held: by its id, its session, or an ancestor of the
        session. `lineage` names the session, its parent, and so on.
        """
        holds = self._of_owner.get(owner)
        if holds is None:
            return False
        if holds.requests.pop(request_id, 0.0) > arrived_at:
            return True
        for generation, session in enumerate(lineage):
            hold = holds.sessions.get(session, NOT_HELD)
            if (hold.descendants if generation else hold.own) > arrived_at:
                return True
        return False

    def _with_room(self, owner: str, name: str) -> OwnerHolds:
        """Return the owner's holds, after making room for one of this name."""
        holds, now = self._of_owner.setdefault(owner, OwnerHolds()), time.monotonic()
        # An expired hold is kept, if there is room, for requests that arrived before its end and are still being
        # prepared.
        for latest in (now - LONGEST_PREPARATION, now):
            if len(holds) >= MAX_HOLDS:
                holds.drop_expired(latest)
        if len(holds) >= MAX_HOLDS and name not in holds.requests.keys() | holds.sessions.keys():
            raise too_many()
        return holds


def too_many() -> QueueFullError:
    return QueueFullError("too many ids are held for cancellation")
