"""The effect of a message on the replica that gets it. Only this replica's own requests and sessions are affected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.request import RequestSummary
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.messages import (
    AskResponse,
    AskStream,
    Cancel,
    CancelFamilies,
    Cancelled,
    CancelMatching,
    FamilyCancelled,
    Leave,
    ListRequests,
    ListSessions,
    Matched,
    Message,
    Named,
    NameFamilies,
    Newer,
    News,
    Nothing,
    Owned,
    Refused,
    Reply,
    Requests,
    Responded,
    Sessions,
    Snapshot,
    StreamKnown,
    Superseding,
    TakeSnapshot,
    WhoseRequest,
    WhoseSession,
)
from pyllmcancel.server.fleet.transport import WAIT_SECONDS
from pyllmcancel.server.live.snapshot import snapshot
from pyllmcancel.server.requests.answers import outside_status, session_entry
from pyllmcancel.server.requests.visible import Visible, summary_of, without_prefix

if TYPE_CHECKING:
    from pyllmcancel.requests.request import Request
    from pyllmcancel.server.requests.answers import CancelAnswer
    from pyllmcancel.server.requests.visible import Target
    from pyllmcancel.server.state import ServerState

# by this server's clock: if clocks differ by more, no server's requests supersede the other's
MAX_AHEAD_US = 5_000_000


class MessageHandler:
    """Acts for other replicas, and for this one's clients that need all replicas. Used in the event loop only."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def act(self, message: Message) -> Reply:
        """Act on a message; ApiError if this replica has no model, or the message asks for something impossible."""
        match message:
            case Superseding(news=news):
                return Newer(newer=[newer for one in news if (newer := self.heed(one)) is not None])
            case Cancel():
                return await self.cancel(message, patience=WAIT_SECONDS)
            case CancelFamilies():
                return await self.cancel_families(message, patience=WAIT_SECONDS)
            case CancelMatching():
                return await self.cancel_matching(message, patience=WAIT_SECONDS)
            case AskResponse() | AskStream() | Leave():
                return await self._ask(message)
            case _:
                return self._look(message)

    def _look(self, message: Message) -> Reply:
        match message:
            case NameFamilies(owner=owner, sessions=sessions):
                return Named(sessions=sorted(self.family_names(owner, sessions)))
            case WhoseRequest(ids=ids):
                return Owned(owners=self.owners_of(ids))
            case WhoseSession(sessions=sessions):
                return Owned(owners={name: sorted(self._see(None).owners_of_session(name)) for name in sessions})
            case ListRequests():
                return self.list_requests(message)
            case ListSessions():
                return self.list_sessions(message)
            case TakeSnapshot(owner=owner):
                return Snapshot(event=snapshot(self._state, self._see(owner), all_owners=owner is None))
            case _:
                raise ApiError(400, "this message is unknown to this server", code="unknown_message", param="kind")

    def _see(self, owner: str | None) -> Visible:
        return Visible(self._state, owner)

    def heed(self, news: News) -> News | None:
        """Cancel requests of the key that are older than this one; return a newer one, if one is known here.

        A request whose time of arrival is much later than now is ignored: until then it would end every request of its
        key.
        """
        if news.arrived_us > time.time_ns() // 1000 + MAX_AHEAD_US:
            return None
        newer = self._state.engine.heed(news.owner, news.key, news.rank)
        return None if newer is None else news.model_copy(update=newer._asdict())

    # -- cancelling: computations that do not stop in `patience` seconds are not waited for ---------------------------

    async def cancel(self, message: Cancel, patience: float | None = None) -> Cancelled:
        see = self._see(message.owner)
        if message.on_their_way:
            with suppress(QueueFullError):  # with too many holds those that are not seen yet are not reached
                self._state.engine.registry.hold_arrived(message.ids, message.owner)
        found = {one: target for one in message.ids if (target := see.find(one, message.hold)) is not None}
        done = await cancelled(see, found.values(), patience, wait=message.wait, reason=message.reason)
        live: dict[str, list[CancelAnswer]] = {}
        ended: dict[str, list[CancelAnswer]] = {}
        for (request_id, target), answer in zip(found.items(), done, strict=True):
            side = ended if isinstance(target, RequestSummary) else live
            side[request_id] = [answer]
        return Cancelled(live=live, ended=ended)

    async def cancel_families(self, message: CancelFamilies, patience: float | None = None) -> FamilyCancelled:
        see = self._see(message.owner)
        if message.hold > 0.0:
            self.check_room_to_hold(message.owner, message.sessions)
        known, targets = set[str](), dict["Target", None]()
        for name in message.sessions:
            family = self._family_to_cancel(name, message)
            known |= (family or {}).keys()
            targets |= {request: None for members in (family or {}).values() for request in members}
        requests = await cancelled(see, targets, patience, wait=message.wait)
        return FamilyCancelled(sessions=sorted(known), requests=requests)

    def _family_to_cancel(self, name: str, message: CancelFamilies) -> Mapping[str, list[Request]] | None:
        registry = self._state.engine.registry
        descendants, owner = message.descendants, message.owner
        if message.hold == 0.0:
            # With too many holds already, requests that are not listed yet are not reached.
            with suppress(QueueFullError):
                return registry.family_to_cancel(name, owner, descendants=descendants, known_elsewhere=True)
            return None
        return registry.family_to_cancel(name, owner, descendants=descendants, hold=message.hold)

    def check_room_to_hold(self, owner: str, sessions: Collection[str]) -> None:
        """Raise QueueFullError, before anything is cancelled, if there is no room."""
        self._state.engine.registry.check_room_to_hold(sessions, owner)

    def family_names(self, owner: str, names: Iterable[str]) -> set[str]:
        registry = self._state.engine.registry
        return {member for name in names for member in registry.family(name, owner) or ()}

    async def cancel_matching(self, message: CancelMatching, patience: float | None = None) -> Matched:
        see = self._see(message.owner)
        targets = see.live(message.session, message.status)
        return Matched(requests=await cancelled(see, targets, patience, wait=message.wait))

    async def _ask(self, message: AskResponse | AskStream | Leave) -> Reply:
        match message:
            case AskStream():
                return await self.ask_stream(message)
            case AskResponse():
                return await self.ask_response(message)
            case Leave(owner=owner, id=request_id):
                self._state.links.leave(owner, request_id)
                return Nothing()

    async def ask_response(self, message: AskResponse) -> Responded:
        responses = self._state.responses
        try:
            if responses is None:
                return Responded()
            return Responded(found=await responses.act(message.owner, message.id, message.asked, WAIT_SECONDS))
        except ApiError as error:
            if error.code == "response_not_found":
                return Responded()
            refused = Refused(status=error.status, message=error.message, param=error.param, code=error.code)
            return Responded(refused=refused)

    async def ask_stream(self, message: AskStream) -> StreamKnown:
        streams = self._state.streams
        kept = streams.find(message.owner, message.id)
        if kept is not None and message.delete:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await streams.delete(kept)
        return StreamKnown(found=kept is not None)

    # -- looking ------------------------------------------------------------------------------------------------------

    def owners_of(self, ids: Iterable[str]) -> dict[str, list[str]]:
        see = self._see(None)
        return {one: sorted(see.owners_of({one, *without_prefix(one)})) for one in ids}

    def list_requests(self, message: ListRequests) -> Requests:
        see = self._see(message.owner)
        if message.ids is None:
            found = see.summaries()
        else:
            found = [summary_of(target) for one in message.ids if (target := see.find(one)) is not None]
        return Requests(
            data=[
                see.entry(one)
                for one in found
                if message.session in (None, one.session) and message.status in (None, outside_status(one))
            ]
        )

    def list_sessions(self, message: ListSessions) -> Sessions:
        found = [one for one in self._see(message.owner).sessions() if message.name in (None, one.id)]
        return Sessions(data=[session_entry(one) for one in found])


async def cancelled(
    see: Visible,
    targets: Collection[Target],
    patience: float | None,
    *,
    wait: bool,
    reason: CancelReason = CancelReason.EXPLICIT,
) -> list[CancelAnswer]:
    """Cancel all requests at once, and report on them."""
    try:
        async with asyncio.timeout(patience if wait else None):
            return await see.cancel(targets, wait=wait, reason=reason)
    except TimeoutError:
        return await see.cancel(targets, wait=False, reason=reason)
