"""The requests and sessions of all servers that work together, where this one has peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.fleet import Fleet
    from pyllmcancel.server.fleet.view import FleetView
    from pyllmcancel.server.live.frames import Audience
    from pyllmcancel.server.live.response import FeedResponse
    from pyllmcancel.server.requests.visible import Visible


def fleet_events(see: Visible, audience: Audience, owner: str, last_event_id: str | None) -> FeedResponse | None:
    """Return the feed of all servers; None if this server is alone, or cannot read the others' feeds."""
    return None if see.fleet is None else cast("Fleet", see.fleet).events(see, audience, owner, last_event_id)


def fleet_view(see: Visible) -> FleetView | None:
    """Return the view of all servers for the sender of a request; None if this server is alone."""
    # A server without a fleet imports nothing of it.
    return None if see.fleet is None else cast("Fleet", see.fleet).view(see)
