"""The requests and sessions that the sender of an HTTP request may see and cancel: its owner's, or all."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Set
from typing import Annotated

from fastapi import Depends, Query
from fastapi import Request as HttpRequest

from pyllmcancel.events import Ending, FinishReason
from pyllmcancel.requests.families import SessionSummary
from pyllmcancel.requests.request import NO_OWNER, Request, RequestSummary
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.request_context import SANE_ID, bad_id
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.origin import checked
from pyllmcancel.server.requests import answers as wire
from pyllmcancel.server.state import ServerState, state_of

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_")
Target = Request | RequestSummary


class Visible:
    """The part of a server that one owner may see, or an administrator, with None as `owner`."""

    def __init__(self, state: ServerState, owner: str | None) -> None:
        self.owner = owner
        self._state = state
        self._engine = state.engine
        self._registry = state.engine.registry

    def narrowed(self, owner: str | None) -> Visible:
        """Return the part of `owner`, if one is named; ApiError 403 if nothing of that owner may be seen."""
        if owner is None or owner == self.owner:
            return self
        if self.owner is not None:
            raise admin_only("owner")
        return Visible(self._state, owner)

    def summaries(self) -> list[RequestSummary]:
        """Live requests, oldest first, then the last that have ended."""
        live, ended = self._registry.requests(self.owner), self._registry.history(self.owner)
        # A request that ended in between is in both.
        known = {(summary.owner, summary.id, summary.created_at) for summary in ended}
        return [*(one.summary() for one in live if (one.owner, one.id, one.created_at) not in known), *ended]

    def entry(self, summary: RequestSummary) -> wire.RequestEntry:
        """Return the entry of a request, with what it waits for, and the readers of a stream that is kept."""
        entry, readers = wire.request_entry(summary), self._state.streams.readers_of(summary)
        if (ahead := self._engine.ahead_of(summary)) is not None:
            entry["position"], entry["tokens_ahead"] = ahead.position, ahead.tokens
            entry["seconds_ahead"] = None if ahead.seconds is None else round(ahead.seconds, 1)
        if readers is not None:
            entry["readers"] = readers
        return entry

    def sessions(self) -> list[SessionSummary]:
        return self._registry.sessions(self.owner)

    def session(self, name: str) -> SessionSummary | None:
        return self._registry.session(name, self._owner_of_session(name))

    def find_or_hold(self, request_id: str, hold: float = 0.0) -> Target | None:
        """Return the live request of this id, or the one that has ended last.

        An answer's ``id`` field stands for the request's own id, too. An id that is not found is held for `hold`
        seconds.
        """
        owner = self.owner
        if owner is None:
            owner = only(self._registry.owners_of({request_id, *without_prefix(request_id)}), hold)
        if hold > 0.0 and not SANE_ID.fullmatch(request_id):
            raise bad_id("request_id")  # no request of this id can come
        # Requests are looked for in all forms of the id, and held in the last look: looking and holding must be one
        # operation.
        for name in without_prefix(request_id):
            if (found := self._registry.find(name, owner=owner)) is not None:
                return self._registry.find(request_id, owner=owner) or found
        return self._registry.find(request_id, hold, owner)

    def live(self, session: str | None, status: str | None) -> list[Request]:
        """Return all requests that have not ended; if given, only those of a session itself, or in a status."""
        return [
            request
            for request in self._registry.requests(self.owner)
            if session in (None, request.session) and status in (None, wire.outside_status(request.summary()))
        ]

    def begin_session_cancel(self, name: str, *, descendants: bool, hold: float) -> list[Request] | None:
        """Return the live requests of a session and its descendants, so that they can be cancelled; None if the session
        is unknown. Those that come within `hold` seconds will be cancelled on their arrival.
        """
        owner = self._owner_of_session(checked(name, "session_id"), hold)
        family = self._registry.family_to_cancel(name, owner, descendants=descendants, hold=hold)
        return None if family is None else [request for members in family.values() for request in members]

    def _owner_of_session(self, name: str, hold: float = 0.0) -> str:
        owners = {session.owner for session in self.sessions() if session.id == name}
        return self.owner if self.owner is not None else only(owners, hold)

    async def cancel(self, targets: Collection[Target], *, wait: bool) -> list[wire.CancelAnswer]:
        """Cancel all requests, then report on them in their order; with `wait`, after the computation has stopped."""
        for target in targets:
            if isinstance(target, Request):
                self._engine.cancel(target)
        return [await report(target, wait=wait) for target in targets]


async def report(target: Target, *, wait: bool) -> wire.CancelAnswer:
    """Report how a cancelled request ended, or its present phase."""
    if isinstance(target, RequestSummary):
        assert target.ending is not None
        return wire.cancel_answer(target.id, target.ending, before=True)
    reason = target.cancellation.reason
    if wait or target.ended.done() or reason is None:  # without a reason the cancel came too late
        # Shielded: a client that leaves here must not undo anything.
        return wire.cancel_answer(target.id, await asyncio.shield(asyncio.wrap_future(target.ended)))
    so_far = Ending(FinishReason.CANCELLED, target.usage(), target.status, cancel_reason=reason)
    return wire.cancel_answer(target.id, so_far)


def only(owners: Set[str], hold: float) -> str:
    """Return the owner that an administrator means. The administrator need not name it if only one owner has this name.

    Raises ApiError if several owners have it, or if a name that no owner has is to be held.
    """
    if len(owners) > 1:
        raise ApiError(409, "several owners have this; name one by ?owner=NAME", param="owner", code="ambiguous")
    if not owners and hold > 0.0:
        raise ApiError(400, "no owner has this yet; name the owner for whom to hold it, by ?owner=NAME", param="owner")
    return next(iter(owners), NO_OWNER)


def without_prefix(name: str) -> list[str]:
    return [name.removeprefix(prefix) for prefix in ANSWER_PREFIXES if name.startswith(prefix)]


async def visible(
    http: HttpRequest,
    owner: Annotated[str | None, Query(max_length=MAX_NAME, description="For admins: show only this owner's.")] = None,
) -> Visible:
    """Return what the sender of `http` may see. A coroutine, because FastAPI would call a function in a thread."""
    exchange = exchange_of(http.scope)
    own = None if exchange.is_admin else exchange.owner
    return Visible(state_of(http), own).narrowed(owner)


See = Annotated[Visible, Depends(visible)]


def check_may_see_all(http: HttpRequest) -> None:
    """Raise ApiError 403 if there are several owners, and the request has no administrator's key."""
    if not may_see_all(http):
        raise admin_only()


def may_see_all(http: HttpRequest) -> bool:
    exchange = exchange_of(http.scope)
    if exchange.sees_all is not None:
        return exchange.sees_all
    return exchange.is_admin or not state_of(http).config.shared


def admin_only(param: str | None = None) -> ApiError:
    message = "this is about requests of several owners: it needs the key of --admin-api-key"
    return ApiError(403, message, "permission_error", param=param, code="admin_only")
