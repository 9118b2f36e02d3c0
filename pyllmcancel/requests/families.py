"""Sessions, which group requests, and families: a session and its descendants.

A session has any number of live requests. It is remembered for a while after they have ended, for the relation to its
parent: an agent's sub-agents continue between two requests of the agent.

Not synchronised: the registry guards it, and the other tables, with one lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pyllmcancel.errors import InvalidRequestError, QueueFullError
from pyllmcancel.requests.request import ImpliedParent, Request

MAX_SESSIONS = 1024  # limit of one owner's sessions
MAX_GENERATIONS = 16  # limit of one family


@dataclass(eq=False, slots=True)
class Session:
    """One owner's session. `created` and `used` are seconds since the epoch.

    `cancelled_at` and `family_cancelled_at`, in monotonic seconds: when the session alone, or with its descendants, was
    last cancelled.
    """

    owner: str
    name: str
    parent: Session | None = None
    children: dict[str, Session] = field(default_factory=dict)
    live: dict[str, Request] = field(default_factory=dict)  # by id, oldest first
    n_requests: int = 0
    created: float = field(default_factory=time.time)
    used: float = 0.0
    cancelled_at: float = 0.0
    family_cancelled_at: float = 0.0

    def note_cancel(self, *, descendants: bool) -> None:
        """Note that the session is being cancelled now, with or without its descendants."""
        self.cancelled_at = time.monotonic()
        if descendants:
            self.family_cancelled_at = self.cancelled_at

    def cancels(self, request: Request) -> bool:
        """Return whether a cancel of this session reaches `request`, its own or a descendant's, that came before."""
        return request.arrived_at < (self.cancelled_at if request.group == self.name else self.family_cancelled_at)

    @property
    def forgettable(self) -> bool:
        return not self.live and not self.children

    def lineage(self) -> Iterator[Session]:
        """Iterate over the session, its parent, and so on."""
        session: Session | None = self
        while session is not None:
            yield session
            session = session.parent

    def family(self) -> Iterator[Session]:
        """Iterate over the session and all its descendants."""
        yield self
        for child in self.children.values():
            yield from child.family()

    def n_generations(self) -> int:
        return 1 + max((child.n_generations() for child in self.children.values()), default=0)

    def summary(self) -> SessionSummary:
        parent = None if self.parent is None else self.parent.name
        children, live = list(self.children), list(self.live)
        return SessionSummary(self.name, self.owner, parent, children, live, self.n_requests, self.created, self.used)


class SessionSummary(NamedTuple):
    """A session as it is shown to the outside: `requests` are the ids of the live ones, `n_requests` counts all."""

    id: str
    owner: str
    parent: str | None
    children: list[str]
    requests: list[str]
    n_requests: int
    created: float
    used: float


class Families:
    """The sessions of all owners."""

    def __init__(self) -> None:
        # Least recently used first. A session is never used without its ancestors, so that children come before them.
        self._sessions: dict[str, dict[str, Session]] = {}

    def find(self, owner: str, name: str) -> Session | None:
        return self._sessions.get(owner, {}).get(name)

    def sessions(self, owner: str | None = None) -> list[Session]:
        """Return the sessions of one owner, or of all owners, the most recently used first."""
        return sorted(self._of(owner), key=lambda session: session.used, reverse=True)

    def count_live(self, owner: str | None = None) -> int:
        """Return the number of sessions that have live requests."""
        return sum(bool(session.live) for session in self._of(owner))

    def _of(self, owner: str | None) -> Iterator[Session]:
        """Iterate over the sessions of one owner, or of all owners."""
        owners = self._sessions.values() if owner is None else [self._sessions.get(owner, {})]
        return (session for sessions in owners for session in sessions.values())

    def declare(self, owner: str, name: str, parent: str | None = None) -> Session:
        """Return the session of this name, made if need be, as a child of `parent`.

        InvalidRequestError, and nothing is changed, if it would be its own ancestor, has another parent while its
        requests live, or is too deep in its family; QueueFullError if the owner has too many sessions.
        """
        sessions = self._sessions.setdefault(owner, {})
        if parent is not None:
            self._check_parent(sessions, name, parent)
        self._make_room(sessions, {name} if parent is None else {name, parent})
        session = self._get(owner, name)
        if parent is not None and (session.parent is None or session.parent.name != parent):
            if session.parent is not None:
                del session.parent.children[name]
            session.parent = self._get(owner, parent)
            session.parent.children[name] = session
        now = time.time()
        for used in session.lineage():  # to the end of the order, before their ancestors
            used.used = now
            sessions[used.name] = sessions.pop(used.name)
        return session

    def join(self, request: Request) -> None:
        """List a request in its session; raises as `declare`."""
        if request.group is None:
            return
        parent = None if request.session is None else request.parent
        try:
            session = self.declare(request.owner, request.group, parent)
        except InvalidRequestError:
            if not isinstance(parent, ImpliedParent):
                raise
            session = self.declare(request.owner, request.group)
        session.live[request.id] = request
        session.n_requests += 1

    def leave(self, request: Request) -> None:
        """Remove an ended request from its session's list."""
        session = self.of_request(request)
        if session is not None and session.live.get(request.id) is request:
            del session.live[request.id]

    def retract(self, request: Request) -> None:
        """Undo `join`: the request is refused, or renamed. Sessions that nothing else has named are forgotten."""
        session = self.of_request(request)
        if session is None or session.live.get(request.id) is not request:
            return
        self.leave(request)
        session.n_requests -= 1
        for named in tuple(session.lineage()):
            if named.n_requests or named.cancelled_at or not named.forgettable:
                break
            self._forget(named)

    def of_request(self, request: Request) -> Session | None:
        return None if request.group is None else self.find(request.owner, request.group)

    def _check_parent(self, sessions: dict[str, Session], name: str, parent: str) -> None:
        if name == parent:
            raise InvalidRequestError("a session cannot be its own parent", "parent_session_id")
        session, above = sessions.get(name), sessions.get(parent)
        lineage = [] if above is None else list(above.lineage())
        if session is not None:
            if session in lineage:
                raise InvalidRequestError("this parent is a descendant of the session", "parent_session_id")
            if session.live and session.parent is not None and session.parent is not above:
                raise InvalidRequestError("the session has another parent", "parent_session_id")
        n_above, n_below = max(len(lineage), 1), 1 if session is None else session.n_generations()
        if n_above + n_below > MAX_GENERATIONS:
            raise InvalidRequestError(f"a family has at most {MAX_GENERATIONS} generations", "parent_session_id")

    def _make_room(self, sessions: dict[str, Session], wanted: set[str]) -> None:
        """Forget the least recently used sessions that may be forgotten, to make room for those that are `wanted`."""
        n_excess = len(sessions) + sum(name not in sessions for name in wanted) - MAX_SESSIONS
        if n_excess <= 0:
            return
        old = [name for name, session in sessions.items() if session.forgettable and name not in wanted][:n_excess]
        if len(old) < n_excess:
            raise QueueFullError(f"{MAX_SESSIONS} sessions are in use already")
        for name in old:
            self._forget(sessions[name])

    def _forget(self, session: Session) -> None:
        del self._sessions[session.owner][session.name]
        if session.parent is not None:
            del session.parent.children[session.name]

    def _get(self, owner: str, name: str) -> Session:
        return self._sessions[owner].setdefault(name, Session(owner, name))
