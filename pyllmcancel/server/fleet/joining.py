"""A server and its peers over HTTP, put together."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from pyllmcancel import __version__
from pyllmcancel.server.fleet.door import Door
from pyllmcancel.server.fleet.events.feed import WholeFeed
from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.http_transport import HttpTransport
from pyllmcancel.server.fleet.identity import Identity

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pyllmcancel.server.fleet.addresses import FleetSettings
    from pyllmcancel.server.state import ServerState


class Me:
    """Says who this server is."""

    def __init__(self, state: ServerState, name: str) -> None:
        self._state = state
        self._name = name
        self._nonce = secrets.token_hex(16)

    def __call__(self) -> Identity:
        return Identity(
            nonce=self._nonce,
            name=self._name,
            version=__version__,
            model=model_of(self._state),
            clock_us=time.time_ns() // 1000,
        )


def model_of(state: ServerState) -> str | None:
    """What two servers must have in common; None before the model is there."""
    if not state.n_ctx:
        return None
    model = state.engine.model
    return f"{state.model_name} ({model.n_params:,} parameters, {model.size:,} bytes)"


def join_by_http(app: FastAPI, state: ServerState, settings: FleetSettings) -> Fleet:
    """Take part in the fleet of these settings, from when the model is there; peers are let in by a layer of `app`."""
    me = Me(state, settings.name)
    feed = WholeFeed(state.feed, settings.name)
    fleet = Fleet(state, HttpTransport(settings, me, watcher=feed), settings.name, feed)
    app.add_middleware(Door, fleet=fleet, me=me, key=settings.key)
    return fleet
