"""The present state for a new reader, which the following events change."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

from pyllmcancel import __version__
from pyllmcancel.events import RequestStatus
from pyllmcancel.server.live.wording import as_json
from pyllmcancel.server.requests.answers import session_entry
from pyllmcancel.server.running.first_steps import example_of

if TYPE_CHECKING:
    from pyllmcancel.requests.request import RequestSummary
    from pyllmcancel.server.live.events import ServerFacts
    from pyllmcancel.server.live.wording import Audience
    from pyllmcancel.server.requests.visible import Visible
    from pyllmcancel.server.state import ServerState

Reason = Literal["new", "unknown_id", "too_old"]

MAX_ENDED = 256  # requests that have ended; the queue bounds the live ones
MAX_SESSIONS = 1_000
ENCODED_AT_ONCE = 16  # entries encoded at once, texts included; then the event loop's other work has a turn


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
    """Return live requests, oldest first, then the last ended ones, newest last.

    Requests in preparation are left out, because no event would report that they were given up.
    """
    summaries = see.summaries()
    live = [one for one in summaries if one.ending is None and one.status is not RequestStatus.PREPARING]
    ended = [one for one in summaries if one.ending is not None]
    return live + ended[MAX_ENDED - 1 :: -1]
