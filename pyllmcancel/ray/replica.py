"""One replica: the server's own ASGI application, made, supervised and ended by Ray."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.context import _get_global_client

from pyllmcancel.cli import logs
from pyllmcancel.cli.serve import model_to_fetch
from pyllmcancel.cli.tracing import open_tracing
from pyllmcancel.engine.loading import Loading
from pyllmcancel.ray.discovery import Discovery
from pyllmcancel.ray.edge import Mounted, watch_clients
from pyllmcancel.ray.listener import Listener
from pyllmcancel.ray.options import LOOPBACK, check_open, checked, served
from pyllmcancel.ray.scaling import load
from pyllmcancel.ray.versions import check_ray, warn_of_niceness
from pyllmcancel.requests.observer import Observers
from pyllmcancel.server.app import create_app
from pyllmcancel.server.http.listening import raise_file_limit
from pyllmcancel.server.limits import GIL_SECONDS
from pyllmcancel.server.running.metrics import EngineMetrics
from pyllmcancel.system import LastResort, niceness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp

    from pyllmcancel.ray.discovery import Handle, Told
    from pyllmcancel.server.state import ServerState

logger = logging.getLogger("pyllmcancel.ray")

# The time for the endings to reach their clients after the engine has died.
LAST_WORDS_SECONDS = 1.0


class Replica:
    """A replica. Ray makes it, and calls its methods by these names. Used in the event loop for users' code only.

    Parameters
    ----------
    line
        The command line of ``pyllmcancel serve``.
    open_to_all
        True if strangers may be answered.
    """

    def __init__(self, line: Sequence[str], *, open_to_all: bool) -> None:
        self._arguments = served(line)
        self._open_to_all = open_to_all
        self._state: ServerState | None = None
        self._discovery: Discovery | None = None
        self._listener: Listener | None = None
        self._closing: asyncio.Task[None] | None = None
        self._context: Any = serve.get_replica_context()
        self._name: str = self._context.replica_tag

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Make the application, when its engine is there: until then Ray lets no request in.

        Errors of the options, the model or the environment are raised, and ``serve status`` reports them.
        """
        logs.set_up(self._arguments.log_format, self._arguments.log_level)
        check_ray()
        warn_of_niceness(niceness())
        raise_file_limit()
        sys.setswitchinterval(GIL_SECONDS)
        config = checked(self._arguments, ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0))
        host = await listening_host()
        check_open(host, config, open_to_all=self._open_to_all)
        model = model_to_fetch(self._arguments)
        tracing = open_tracing(wanted=config.otel)
        metrics = EngineMetrics()
        observer = metrics if tracing is None else Observers(metrics, tracing)
        loading = Loading(config.engine, observer, fetch=None if model is None else model.fetch)
        await asyncio.wrap_future(loading.future)

        # On the same address as Ray Serve: on this machine only, or reachable by Ray's other machines.
        listener = self._listener = Listener("127.0.0.1" if host in LOOPBACK else ray.util.get_node_ip_address())
        self._discovery = Discovery(self._handle(), listener.here)
        config = replace(config, replica=self._name, fleet=None)
        join = partial(listener.join, seek=self._discovery, name=self._name)
        app = create_app(config, metrics=metrics, loading=loading, tracing=tracing, join=join)
        state: ServerState = app.state.server
        state.on_engine_death = end_soon
        loop = asyncio.get_running_loop()
        watch_clients(config.limits, lambda: loop.call_soon_threadsafe(self._drain))
        self._state = state
        gc.collect()
        gc.freeze()
        return Mounted(app)

    def _handle(self) -> Handle:
        """Return the handle of what Ray calls a deployment: all replicas of one application."""
        handle: Handle = serve.get_deployment_handle(self._context.deployment, app_name=self._context.app_name)
        return handle

    async def meet(self, other: Sequence[Any]) -> Told:
        """Answer the broadcast of `pyllmcancel.ray.discovery`."""
        if self._discovery is None:
            raise RuntimeError("this replica is not ready")
        return self._discovery.meet(other)

    def _drain(self) -> None:
        """Drain: accept no more requests. Live ones have the time of --drain, then each gets its proper ending."""
        if self._closing is None and self._state is not None:
            drain = self._state.config.drain
            logger.info("replica %s drains for %.1f s", self._name, drain)
            self._closing = asyncio.create_task(self._close(self._state, drain))

    async def _close(self, state: ServerState, drain: float) -> None:
        await state.close(drain)
        if self._listener is not None:  # until here the others can reach the requests that are computed
            await self._listener.close()

    async def check_health(self) -> None:
        """Ray ends a replica that raises here, and makes another."""
        if self._state is None or self._closing is not None:
            return
        health = self._state.health()
        if health["status"] != "ok":
            raise RuntimeError(f"{health['status']}: {health['error']}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """For `pyllmcancel.ray.scaling.Load`."""
        assert self._state is not None
        engine = self._state.engine
        return load(engine.counts(), engine.occupancy(), engine.capacity)


async def listening_host() -> str | None:
    """Return the address on which Ray Serve listens. Ray does not document how to find it: a new version has to be read
    first.
    """
    options: Any = await _get_global_client()._controller.get_http_config.remote()
    host: str | None = options.host
    return host


def end_soon() -> None:
    """Called by the engine's thread when that dies."""
    LastResort().start(LAST_WORDS_SECONDS)
