"""A server and its peers over HTTP: the parts are put together here."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import httpx

from pyllmcancel import __version__
from pyllmcancel.server.fleet.discovery import Named
from pyllmcancel.server.fleet.endpoint import PeerEndpoint
from pyllmcancel.server.fleet.events.feed import WholeFeed
from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.http_transport import KEEP_SECONDS, HttpTransport
from pyllmcancel.server.fleet.identity import Identity
from pyllmcancel.server.fleet.sockets import SocketsIn, ToSockets
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pyllmcancel.server.fleet.addresses import FleetSettings
    from pyllmcancel.server.fleet.discovery import Seek
    from pyllmcancel.server.state import ServerState


ANY_MODEL = "a model of this machine"


class Me:
    """Makes this server's identity. With `any_model` it works with servers of other models."""

    def __init__(self, state: ServerState, name: str, *, any_model: bool = False) -> None:
        self._any_model = any_model
        self._state = state
        self._name = name
        self._nonce = secrets.token_hex(16)

    def __call__(self) -> Identity:
        return Identity(
            nonce=self._nonce,
            name=self._name,
            version=__version__,
            model=ANY_MODEL if self._any_model and self._state.n_ctx else model_of(self._state),
            clock_us=time.time_ns() // 1000,
        )


def model_of(state: ServerState) -> str | None:
    """Return the description of the model, which two servers must have in common; None before it is loaded."""
    if not state.n_ctx:
        return None
    model = state.engine.model
    return f"{state.model_name} ({model.n_params:,} parameters, {model.size:,} bytes)"


def fleet_by_http(
    state: ServerState,
    seek: Seek,
    name: str,
    *,
    carrier: httpx.AsyncBaseTransport | None = None,
    any_model: bool = False,
) -> tuple[Fleet, Me]:
    """Return the fleet in which this server has this name, after its model is loaded, and the identity for its
    `PeerEndpoint`.
    """
    me, feed = Me(state, name, any_model=any_model), WholeFeed(state.feed, name)
    return Fleet(state, HttpTransport(seek, me, carrier=carrier, watcher=feed), name, feed), me


def join_by_http(app: FastAPI, state: ServerState, settings: FleetSettings) -> Fleet:
    """Take part in the fleet of these settings; a layer of `app` lets peers in."""
    if settings.folder is None:
        fleet, me = fleet_by_http(state, Named(settings, DEADLINE_SECONDS), settings.name)
    else:
        seek = SocketsIn(settings.folder, settings.key)
        carrier = ToSockets(settings.folder, httpx.Limits(keepalive_expiry=KEEP_SECONDS))
        fleet, me = fleet_by_http(state, seek, settings.name, carrier=carrier, any_model=True)
    app.add_middleware(PeerEndpoint, fleet=fleet, me=me, key=settings.key)
    return fleet
