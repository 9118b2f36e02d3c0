"""The listener of a replica for other replicas, beside Ray's listener for clients."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn
from starlette.responses import PlainTextResponse

from pyllmcancel.server.fleet.endpoint import PeerEndpoint
from pyllmcancel.server.fleet.membership import fleet_by_http
from pyllmcancel.server.http.request_context import RequestContext

if TYPE_CHECKING:
    from pyllmcancel.ray.discovery import Told
    from pyllmcancel.server.fleet.discovery import Seek
    from pyllmcancel.server.fleet.fleet import Fleet
    from pyllmcancel.server.state import ServerState

GRACE_SECONDS = 1  # for answers in progress at the end
KEEP_SECONDS = 75  # an idle connection is kept longer than the other replica's client keeps it
NOBODY = PlainTextResponse("this address answers other replicas only\n", status_code=404)


class Quiet(uvicorn.Server):
    """Leaves the signals of the process to Ray."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """A listener that accepts connections at once, and answers after `join`. Used in the event loop for users' code.

    Parameters
    ----------
    host
        An address of this machine that other replicas can reach.
    """

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        # A key for each replica and each start: whoever does not get it from Ray cannot act as a replica.
        self._key = secrets.token_urlsafe(32)
        self.here: Told = (host, self._socket.getsockname()[1], self._key)
        self._server: Quiet | None = None
        self._serving: asyncio.Task[None] | None = None

    def join(self, state: ServerState, seek: Seek, name: str) -> Fleet:
        """Join the fleet; return this replica's fleet."""
        fleet, me = fleet_by_http(state, seek, name)
        endpoint = RequestContext(PeerEndpoint(NOBODY, fleet, me, self._key), served_by=name)
        config = uvicorn.Config(
            endpoint,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_keep_alive=KEEP_SECONDS,
        )
        self._server = Quiet(config)
        self._serving = asyncio.create_task(self._server.serve([self._socket]), name="listen for replicas")
        return fleet

    async def close(self) -> None:
        """Idempotent."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        self._socket.close()
