"""The present state for a new reader, which the following events change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

from pyllmcancel import __version__
from pyllmcancel.events import RequestStatus
from pyllmcancel.server.live.wording import as_json, frame
from pyllmcancel.server.requests.answers import session_entry
from pyllmcancel.server.running.first_steps import example_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from pyllmcancel.requests.request import RequestSummary
    from pyllmcancel.server.live.events import FeedCapacity, FeedModel, FeedServer, ServerFacts
    from pyllmcancel.server.live.feed import Feed
    from pyllmcancel.server.live.frames import Audience
    from pyllmcancel.server.live.source import Reader
    from pyllmcancel.server.requests.visible import Visible
    from pyllmcancel.server.state import ServerState

Reason = Literal["new", "unknown_id", "too_old"]

MAX_ENDED = 256  # requests that have ended; the queue bounds the live ones
MAX_SESSIONS = 1_000
ENCODED_AT_ONCE = 16  # entries encoded at once, texts included; then the event loop's other work has a turn


class Snapshots:
    """The snapshots of this server for one reader.

    Parameters
    ----------
    replica
        This server's name in the snapshots, if it has one.
    """

    def __init__(self, state: ServerState, see: Visible, audience: Audience, replica: str | None = None) -> None:
        self._state = state
        self._see = see
        self._all_owners = audience.owner is None
        self._replica = replica

    async def frames(self, reader: Reader, reason: Reason) -> AsyncIterator[bytes]:
        """Yield one snapshot. The events that follow may repeat some of it."""
        feed = self._state.feed
        feed.flush()
        place = reader.place = feed.ring.newest
        yield frame(feed.frames.id_of(place), "snapshot", await self.encoded(reason))

    async def encoded(self, reason: Reason) -> bytes:
        """Return a snapshot as JSON, with everything that had happened before this call, and maybe more."""
        event = server_facts(self._state, self._see, reason, all_owners=self._all_owners)
        if self._replica is not None:
            event["replica"] = self._replica
        requests = await encoded_entries(self._state.feed, shown(self._see))
        # The entries come last, one by one: several hundred of them take milliseconds.
        return as_json(event)[:-1] + b', "requests": [%b]}' % requests


def server_facts(state: ServerState, see: Visible, reason: Reason, *, all_owners: bool) -> ServerFacts:
    """Return all fields of the event but the requests."""
    engine = state.engine
    path, body = example_of(state)
    server: FeedServer = {"version": __version__, "boot": state.feed.frames.boot, "started": state.created}
    model: FeedModel = {
        "id": state.model_name,
        "description": engine.model.description,
        "memory": engine.model.memory_kind,
        "example": {"path": path, "body": body},
    }
    capacity: FeedCapacity = {
        "slots": engine.capacity.slots,
        "cells": engine.capacity.cells,
        "n_ctx": engine.n_ctx,
    }
    event: ServerFacts = {
        "type": "snapshot",
        "reason": reason,
        "at": time.monotonic(),
        "epoch": time.time(),
        "server": server,
        "model": model,
        "capacity": capacity,
        "all_owners": all_owners,
        "exposes_prompts": state.config.expose_prompts,
        "sessions": [session_entry(one) for one in see.sessions()[:MAX_SESSIONS]],
    }
    stats = state.feed.stats() if all_owners else None
    if stats is not None:
        event["stats"] = stats
    return event


def shown(see: Visible) -> list[RequestSummary]:
    """Return live requests, oldest first, then the last ended ones, newest last.

    Requests in preparation are left out, because no event would report that they were given up.
    """
    summaries = see.summaries()
    live = [one for one in summaries if one.ending is None and one.status is not RequestStatus.PREPARING]
    ended = [one for one in summaries if one.ending is not None]
    return live + ended[MAX_ENDED - 1 :: -1]


async def encoded_entries(feed: Feed, summaries: Iterable[RequestSummary]) -> bytes:
    entries = []
    for place, summary in enumerate(summaries):
        if place % ENCODED_AT_ONCE == ENCODED_AT_ONCE - 1:
            await asyncio.sleep(0)
        entries.append(as_json(feed.frames.wording.entry(summary)))
    return b", ".join(entries)
