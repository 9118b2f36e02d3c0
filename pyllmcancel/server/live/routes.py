"""``GET /v1/events``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi import Request as HttpRequest
from fastapi.responses import Response

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of, owner_of
from pyllmcancel.server.live.events import EVENTS, TYPES
from pyllmcancel.server.live.response import FeedResponse, unknown_replica
from pyllmcancel.server.live.wording import Audience
from pyllmcancel.server.openapi.description import errors, stream_of
from pyllmcancel.server.requests.visible import See, may_see_all
from pyllmcancel.server.state import state_of

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 403, 404, 503))

MAX_TYPES = 200  # characters
Types = Annotated[
    str | None,
    Query(
        max_length=MAX_TYPES,
        description="Send only events of these types, separated by commas; snapshots are always sent.",
    ),
]
ReplicaName = Annotated[
    str | None, Query(max_length=MAX_TYPES, description="With several replicas: send the events of this one only.")
]
EventId = Annotated[str | None, Query(description="As the header Last-Event-ID.")]


@router.get(
    "/events",
    summary="The engine's events as they happen; of all workers of a front",
    response_class=Response,
    responses=stream_of(*EVENTS),
)
async def follow_events(
    http: HttpRequest,
    see: See,
    types: Types = None,
    *,
    replica: ReplicaName = None,
    last_event_id: EventId = None,
    header: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Resume after this event, if it is remembered.")
    ] = None,
) -> Any:
    state = state_of(http)
    owner = owner_of(http.scope)
    state.feed.check_room(owner)
    # If there is one owner, that owner sees everything.
    owner_seen = see.owner if exchange_of(http.scope).is_admin or not may_see_all(http) else None
    audience = Audience(owner_seen, named_types(types), replica)
    if replica is not None and not exchange_of(http.scope).is_from_front:
        raise unknown_replica()
    return FeedResponse(state, see, audience, owner=owner, last_event_id=header or last_event_id)


def named_types(names: str | None, known: Collection[str] = TYPES) -> frozenset[str] | None:
    """Return the types that a query names; ApiError 400 for unknown ones."""
    if names is None:
        return None
    types = frozenset(names.split(","))
    unknown = sorted(types.difference(known))
    if unknown:
        message = f"no type of event is called {unknown[0]!r}; there are {', '.join(known)}"
        raise ApiError(400, message, param="types", code="unknown_type")
    return types
