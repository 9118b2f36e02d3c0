"""The requests and sessions of all replicas that the sender of an HTTP request may see and cancel.

Requests of this replica are looked at, and cancelled, first. The answers are those that a single server would give.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.families import MAX_GENERATIONS
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.merging import merged_cancels, merged_requests, merged_sessions
from pyllmcancel.server.fleet.messages import (
    MAX_KNOWN,
    AskResponse,
    AskStream,
    Cancel,
    CancelFamilies,
    Cancelled,
    CancelMatching,
    FamilyCancelled,
    ListRequests,
    ListSessions,
    Matched,
    Message,
    Named,
    NameFamilies,
    Owned,
    Reply,
    Requests,
    Responded,
    Sessions,
    StreamKnown,
    WhoseRequest,
    WhoseSession,
)
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS
from pyllmcancel.server.http.request_context import SANE_ID, bad_id
from pyllmcancel.server.limits import MAX_CANCELS
from pyllmcancel.server.origin import checked
from pyllmcancel.server.requests.visible import only

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.handler import MessageHandler
    from pyllmcancel.server.fleet.queries import Heard, PeerQueries
    from pyllmcancel.server.requests.answers import CancelAnswer, LiveStatus, OutsideStatus, RequestEntry, SessionEntry
    from pyllmcancel.server.requests.visible import Visible
    from pyllmcancel.server.state import Asked

R = TypeVar("R", bound=Reply)
# Each round may find one more generation. The limit ends it even if a peer invents names or is slow.
MAX_ROUNDS = MAX_GENERATIONS + 1
MAX_SECONDS = 4 * DEADLINE_SECONDS


class FleetView:
    """The view for one HTTP request; `see` is its view of this replica."""

    def __init__(self, queries: PeerQueries, handler: MessageHandler, see: Visible) -> None:
        self._queries = queries
        self._handler = handler
        self._see = see

    # -- looking ------------------------------------------------------------------------------------------------------

    async def requests(self, status: OutsideStatus | None = None, session: str | None = None) -> list[RequestEntry]:
        """Return live requests, oldest first, then the last ended ones."""
        message = ListRequests(owner=self._see.owner, status=status, session=session)
        mine = self._handler.list_requests(message)
        return merged_requests({self._queries.name: mine.data} | await self._listed(message))

    async def _listed(self, message: ListRequests) -> dict[str, list[RequestEntry]]:
        return {name: reply.data for name, reply in (await self._ask(message, Requests)).items()}

    async def request(self, request_id: str) -> RequestEntry | None:
        """Return the live request, else the one that ended last."""
        owner = (await self._owners([request_id]))[request_id]
        message = ListRequests(owner=owner, ids=[request_id])
        mine = {self._queries.name: self._handler.list_requests(message).data}
        if not any(entry["finish_reason"] is None for entry in mine[self._queries.name]):
            mine |= await self._listed(message)
        return next(iter(merged_requests(mine)), None)

    async def sessions(self, *, live: bool = False, name: str | None = None) -> list[SessionEntry]:
        """Return the sessions, the most recently used first; a session that several replicas know is listed once."""
        owner = self._see.owner if name is None else await self._owner_of_session(name)
        message = ListSessions(owner=owner, name=name)
        mine = self._handler.list_sessions(message).data
        theirs = {one: reply.data for one, reply in (await self._ask(message, Sessions)).items()}
        return [
            entry for entry in merged_sessions({self._queries.name: mine} | theirs) if entry["requests"] or not live
        ]

    async def response(self, response_id: str, asked: Asked) -> dict[str, Any] | None:
        """Return the answer of the replica that has this response of an owner's; None if none has.

        Raises ApiError if that replica refuses, or if a replica that may have the response does not answer.
        """
        assert self._see.owner is not None
        heard = await self._heard(AskResponse(owner=self._see.owner, id=response_id, asked=asked), Responded)
        for reply in heard.replies.values():
            if reply.found is not None:
                return reply.found
        for reply in heard.replies.values():
            if (refused := reply.refused) is not None:
                raise ApiError(refused.status, refused.message, param=refused.param, code=refused.code)
        if heard.silent:
            message = f"this response may be on another server, which cannot be asked now: {', '.join(heard.silent)}"
            raise ApiError(503, message, "server_error", code="replica_unreached")
        return None

    async def has_stream(self, name: str, *, delete: bool) -> bool:
        """Return whether a replica has this stream of an owner's, which is cancelled and forgotten with `delete`."""
        assert self._see.owner is not None
        replies = await self._ask(AskStream(owner=self._see.owner, id=name, delete=delete), StreamKnown)
        return any(reply.found for reply in replies.values())

    # -- cancelling ---------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Collection[str], *, wait: bool, hold: float) -> dict[str, list[CancelAnswer]]:
        """Cancel by id; an id that no replica knows is left out. With `hold`, all replicas hold such an id."""
        for request_id in ids:
            if hold > 0.0 and not SANE_ID.fullmatch(request_id):
                raise bad_id("request_id")  # no request of this id can come
        owners = await self._owners(ids, hold)
        found: dict[str, list[CancelAnswer]] = {}
        for owner in set(owners.values()):
            own = [request_id for request_id in ids if owners[request_id] == owner]
            found |= await self._cancel(Cancel(owner=owner, ids=own, wait=wait))
            # Only now, because an id that is found anywhere must not be held. Looking and holding are one operation on
            # each replica.
            unknown = [request_id for request_id in own if request_id not in found]
            if unknown and hold > 0.0:
                found |= await self._cancel(Cancel(owner=owner, ids=unknown, wait=wait, hold=hold))
        return found

    async def _cancel(self, message: Cancel) -> dict[str, list[CancelAnswer]]:
        """Ask all replicas: a client that repeats a request under its id may have reached another replica the second
        time.
        """
        mine, theirs = await asyncio.gather(self._handler.cancel(message), self._ask(message, Cancelled))
        return merged_cancels(message.ids, [mine, *theirs.values()])

    async def cancel_matching(
        self, session: str | None, status: LiveStatus | None, *, wait: bool
    ) -> list[CancelAnswer]:
        message = CancelMatching(owner=self._see.owner, session=session, status=status, wait=wait)
        mine, theirs = await asyncio.gather(self._handler.cancel_matching(message), self._ask(message, Matched))
        return [one for reply in (mine, *theirs.values()) for one in reply.requests]

    async def cancel_session(
        self, name: str, *, descendants: bool, wait: bool, hold: float
    ) -> list[CancelAnswer] | None:
        """Cancel the requests of a session and, with `descendants`, of those below it, on all replicas; None if it is
        unknown.

        One replica may know the child of a session, another one the child of that child, so replicas are asked until
        there are no new names. The members that are known here are cancelled at once. With `hold` they are cancelled
        after the check that there is room to hold all names, which may raise QueueFullError.
        """
        owner = await self._owner_of_session(checked(name, "session_id"), hold)
        message = CancelFamilies(owner=owner, sessions=[name], descendants=descendants, wait=wait, hold=hold)
        until = time.monotonic() + MAX_SECONDS
        if hold > 0.0:
            names = await self._family(owner, name, until) if descendants else {name}
            self._handler.check_room_to_hold(owner, names)
            replies = await self._cancel_families(message, names, until)
        else:
            replies = await self._cancel_at_once(message, until)
        if not any(reply.sessions for reply in replies):
            return None
        found: dict[str, CancelAnswer] = {}
        for reply in replies:
            for one in reply.requests:
                found.setdefault(one["id"], one)  # a request that had not ended is named again
        return list(found.values())

    async def _cancel_at_once(self, message: CancelFamilies, until: float) -> list[FamilyCancelled]:
        """Cancel the requests that are known here first, then those that are found on other replicas."""
        here = asyncio.ensure_future(self._handler.cancel_families(message))
        try:
            (name,) = message.sessions
            names = await self._family(message.owner, name, until) if message.descendants else {name}
            elsewhere = await self._cancel_families(message, names, until)
            return [await here, *elsewhere]
        finally:
            here.cancel()

    async def _cancel_families(self, message: CancelFamilies, names: Set[str], until: float) -> list[FamilyCancelled]:
        """Cancel the requests of these sessions and, with descendants, of all that are found meanwhile."""
        replies: list[FamilyCancelled] = []
        todo, done = set(names), set[str]()
        for _ in range(MAX_ROUNDS):
            new = some_new(todo, done)
            if not new or (done and time.monotonic() > until):
                break
            done |= new
            for some in slices(sorted(new)):
                part = message.model_copy(update={"sessions": some, "hold": self._hold_of(message, some)})
                mine, theirs = await asyncio.gather(
                    self._handler.cancel_families(part), self._ask(part, FamilyCancelled)
                )
                replies += [mine, *theirs.values()]
            if message.descendants:
                todo |= {one for reply in replies for one in reply.sessions}
        return replies

    def _hold_of(self, message: CancelFamilies, names: Collection[str]) -> float:
        """Return the hold; none for names that were found late and are too many, which are cancelled all the same."""
        try:
            self._handler.check_room_to_hold(message.owner, names)
        except QueueFullError:
            return 0.0
        return message.hold

    async def _family(self, owner: str, name: str, until: float) -> set[str]:
        """Return a session and all sessions below it, as far as any replica knows."""
        names, asked = {name}, set[str]()
        for _ in range(MAX_ROUNDS):
            new = some_new(names, asked)
            if not new or time.monotonic() > until:
                break
            asked |= new
            names |= self._handler.family_names(owner, new)
            for some in slices(sorted(new)):
                replies = await self._ask(NameFamilies(owner=owner, sessions=some), Named)
                names |= {one for reply in replies.values() for one in reply.sessions}
        return asked | some_new(names, asked)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, message: Message, reply_type: type[R]) -> dict[str, R]:
        return (await self._heard(message, reply_type)).replies

    async def _heard(self, message: Message, reply_type: type[R]) -> Heard[R]:
        heard = await self._queries.ask(message, reply_type)
        self._see.unreached.update(heard.unreached)
        return heard

    async def _owners(self, ids: Collection[str], hold: float = 0.0) -> dict[str, str]:
        """Return the owner of each. An administrator need not name an owner if only one has this id."""
        if self._see.owner is not None:
            return dict.fromkeys(ids, self._see.owner)
        theirs = await self._ask(WhoseRequest(ids=list(ids)), Owned)
        told = [self._handler.owners_of(ids), *(reply.owners for reply in theirs.values())]
        return {one: only({owner for owners in told for owner in owners.get(one, ())}, hold) for one in ids}

    async def _owner_of_session(self, name: str, hold: float = 0.0) -> str:
        if self._see.owner is not None:
            return self._see.owner
        theirs = await self._ask(WhoseSession(sessions=[name]), Owned)
        told = (owner for reply in theirs.values() for owner in reply.owners.get(name, ()))
        return only({*self._see.owners_of_session(name), *told}, hold)


def some_new(names: Set[str], asked: Set[str]) -> set[str]:
    """Return the names that were not asked about yet, unless there are too many for one family."""
    return set(sorted(names - asked)[: max(0, MAX_KNOWN - len(asked))])


def slices(names: Sequence[str]) -> Iterator[list[str]]:
    """Iterate over slices of as many names as a message may have."""
    return (list(names[start : start + MAX_CANCELS]) for start in range(0, len(names), MAX_CANCELS))
