"""``GET /v1/events``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from pyllmcancel import __version__
from pyllmcancel.events import RequestStatus
from pyllmcancel.requests.request import RequestSummary
from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.connection import until_left
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.live.events import EVENTS, TYPES, ServerFacts
from pyllmcancel.server.live.feed import Reader
from pyllmcancel.server.live.wording import Audience, as_json, frame
from pyllmcancel.server.openapi.description import errors, stream_of
from pyllmcancel.server.requests.answers import session_entry
from pyllmcancel.server.requests.visible import See, Visible, may_see_all
from pyllmcancel.server.running.first_steps import example_of
from pyllmcancel.server.state import ServerState, state_of

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 403, 404, 503))

MAX_TYPES = 200  # characters
Types = Annotated[
    str | None, Query(max_length=MAX_TYPES, description="Only these types, separated by commas; snapshots always come.")
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
    header: Annotated[str | None, Header(alias="Last-Event-ID", description="Resume after this event.")] = None,
) -> Any:
    state = state_of(http)
    owner = exchange_of(http.scope).owner
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


Reason = Literal["new", "unknown_id", "too_old"]

MAX_ENDED = 256  # requests that have ended; the queue bounds the live ones
MAX_SESSIONS = 1_000
ENCODED_AT_ONCE = 16  # entries encoded at once, texts included; then the event loop's other work has a turn


class FeedResponse(Response):
    """Server-sent events for a reader with the `owner`'s key, after `last_event_id` if the feed remembers it."""

    def __init__(
        self, state: ServerState, see: Visible, audience: Audience, *, owner: str, last_event_id: str | None
    ) -> None:
        super().__init__()
        self._state = state
        self._feed = state.feed
        self._see = see
        self._audience = audience
        self._owner = owner
        self._last_event_id = last_event_id
        self._sent_at = 0.0  # on the event loop's clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_left(scope, receive, asyncio.create_task(self._send(send), name="send the feed"))

    async def _send(self, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._feed.reader(self._audience, self._owner, task.cancel) as reader:
            self._feed.flush()  # so that the places of all events until now are known
            reason = self._place(reader)
            await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
            self._sent_at = asyncio.get_running_loop().time()
            if reason is not None:
                # The events that follow may repeat some of the snapshot.
                self._feed.flush()
                reader.place = self._feed.ring.newest
                event_id = self._feed.frames.id_of(reader.place)
                facts = await snapshot(self._state, self._see, self._audience, reason)
                await self._write(send, frame(event_id, "snapshot", facts))
            while (body := await self._next(reader)) is not None:
                await self._write(send, body)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._sent_at = asyncio.get_running_loop().time()

    def _place(self, reader: Reader) -> Reason | None:
        """Put the reader to where it resumes, or return why it starts anew."""
        if self._last_event_id is None:
            return "new"
        place = self._feed.frames.number_in(self._last_event_id)
        if place is None or place > self._feed.ring.newest:
            return "unknown_id"
        if not self._feed.ring.remembers(place):
            return "too_old"
        reader.place = place
        return None

    async def _next(self, reader: Reader) -> bytes | None:
        """Return the next events, or a ping after a time of silence; None at the end."""
        interval = self._state.config.sse_ping_interval
        try:
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the events.
            async with asyncio.timeout_at(self._sent_at + interval if interval else None):
                while not (body := self._feed.read(reader)):
                    if self._feed.ended:
                        return None
                    await self._feed.change()
                return body
        except TimeoutError:
            return PING


def unknown_replica() -> ApiError:
    return ApiError(404, "no replica of this name is known", param="replica", code="unknown_replica")


async def snapshot(state: ServerState, see: Visible, audience: Audience, reason: Reason) -> bytes:
    """Return a snapshot as JSON, with everything that had happened before this call, and maybe more."""
    event = server_facts(state, see, reason, all_owners=audience.owner is None)
    if audience.replica is not None:
        event["replica"] = audience.replica
    entries = []
    for place, summary in enumerate(shown(see)):
        if place % ENCODED_AT_ONCE == ENCODED_AT_ONCE - 1:
            await asyncio.sleep(0)
        entries.append(as_json(state.feed.frames.entry(summary)))
    # The entries come last, one by one: several hundred of them take milliseconds.
    return as_json(event)[:-1] + b', "requests": [%b]}' % b", ".join(entries)


def server_facts(state: ServerState, see: Visible, reason: Reason, *, all_owners: bool) -> ServerFacts:
    """Return all fields of the event but the requests."""
    engine = state.engine
    path, body = example_of(state)
    event: ServerFacts = {
        "type": "snapshot",
        "reason": reason,
        "at": time.monotonic(),
        "epoch": time.time(),
        "server": {"version": __version__, "boot": state.feed.frames.boot, "started": state.created},
        "model": {
            "id": state.model_name,
            "description": engine.model.description,
            "memory": engine.model.memory_kind,
            "example": {"path": path, "body": body},
        },
        "capacity": {"slots": engine.capacity.slots, "cells": engine.capacity.cells, "n_ctx": engine.n_ctx},
        "all_owners": all_owners,
        "exposes_prompts": state.config.expose_prompts,
        "sessions": [session_entry(one) for one in see.sessions()[:MAX_SESSIONS]],
    }
    stats = state.feed.stats() if all_owners else None
    if stats is not None:
        event["stats"] = stats
    return event


def shown(see: Visible) -> list[RequestSummary]:
    """Return a snapshot's requests: live ones but those in preparation, oldest first, then ended, newest last."""
    summaries = see.summaries()
    live = [one for one in summaries if one.ending is None and one.status is not RequestStatus.PREPARING]
    ended = [one for one in summaries if one.ending is not None]
    return live + ended[MAX_ENDED - 1 :: -1]
