"""The ASGI application in front of the models' processes, and the server that runs it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from starlette.routing import Route

from pyllmcancel import __version__
from pyllmcancel.front import feed
from pyllmcancel.front import routes as models_routes
from pyllmcancel.front.router import Router
from pyllmcancel.server import page, routes_health
from pyllmcancel.server.app import add_layers, all_routes
from pyllmcancel.server.batches import routes as batches_routes
from pyllmcancel.server.batches.running import Batches
from pyllmcancel.server.bodies import arriving_paths
from pyllmcancel.server.from_front import WORKERS_PATH, Keyed
from pyllmcancel.server.http.api_keys import KeyRing
from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.listening import url_of
from pyllmcancel.server.http.protocol import uvicorn_config
from pyllmcancel.server.http.workers import Workers, post
from pyllmcancel.server.limits import WORKERS
from pyllmcancel.server.requests import routes as requests_routes
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.server.running.supervised import SupervisedServer
from pyllmcancel.server.streams import routes as streams_routes
from pyllmcancel.shares import Shares

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from pyllmcancel.front.keeper import Keeper
    from pyllmcancel.front.requests import FrontRequest, FrontRequests
    from pyllmcancel.server.config import Certificate, ServerConfig
    from pyllmcancel.server.http.listening import Listener
    from pyllmcancel.server.running.key_rotation import Hangups
    from pyllmcancel.server.state import Healthy, Unhealthy
    from pyllmcancel.server.streams.kept import KeptAnswer
    from pyllmcancel.server.streams.kept_answers import KeptAnswers

logger = logging.getLogger("pyllmcancel.front")

OF_PROCESSES = "/v1/steps", "/openapi.json"  # paths of what only a model's process tells
MAX_SHOWN = 20  # names of models in the log
GRACE_SECONDS = 1.0  # after the processes' drain, for the last bytes of their answers


@dataclass(slots=True)
class FrontState:
    """The part of a server's state that its layers and its routes need."""

    config: ServerConfig
    keys: KeyRing
    engine: FrontRequests
    workers: Workers
    streams: KeptAnswers[KeptAnswer]
    keeper: Keeper
    n_ctx: int = 0
    model_name: str = ""

    def preparing(self, owner: str, stream: str) -> list[FrontRequest]:
        """Return the requests that no process has accepted, and whose stream will have this name."""
        coming = [(one, one.keeping) for one in self.engine.coming(owner)]
        return [one for one, keeping in coming if keeping is not None and stream in (keeping.name, one.id)]

    def health(self, **_to_front: bool) -> Healthy | Unhealthy:
        """Return whether requests can be served, as a server of one model does."""
        status, models = self.keeper.health, self.keeper.roster.replicas.values()
        if status == "draining":
            return {"status": status, "error": None}
        if status == "loading":
            starting = (one.progress for one in self.keeper.processes.values() if one.model in self.keeper.starting)
            least = min((progress or 0.0 for progress in starting), default=0.0)
            return {"status": status, "error": None, "stage": "loading", "progress": least}
        if models and all(one.is_refused(time.monotonic()) for one in models):
            return {"status": "failed", "error": "no model can be served: all have failed"}
        if self.config.shared:  # no key is needed here, and owners must not learn of each other
            return {"status": status}
        waiting, running = sum(len(one.waiting) for one in models), sum(len(one.running) for one in models)
        return {"status": status, "waiting": waiting, "running": running}


def create_router_app(config: ServerConfig, keeper: Keeper, store: Store | None = None) -> FastAPI:
    """Make the application; `keeper`, its remotes and `store` are closed with it. The store is that of `config`, for
    batches: responses are stored by the models' processes.
    """
    paths = arriving_paths(all_routes(ui=config.ui))
    keys = KeyRing(config)
    router, remotes = Router(keeper, config, keys.owners, paths), keeper.remotes
    workers = Workers(WORKERS, "pyllmcancel-input", keys.owners)
    state = FrontState(config, keys, engine=router.requests, workers=workers, streams=router.streams, keeper=keeper)
    kept = store or (None if config.storage is None else Store(*config.storage))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        keeper.start()
        if remotes is not None:
            remotes.start()
        if kept is not None:
            batches.begin(batches.go_on())
        try:
            yield
        finally:
            await keeper.close()
            if remotes is not None:
                await remotes.close()
            await batches.close()
            if kept is not None:
                await asyncio.to_thread(kept.close)
            await router.close()
            await router.streams.close()
            await workers.wait_closed()

    ours = (
        *(models_routes.router, routes_health.router, feed.router, requests_routes.router),
        *(streams_routes.router, batches_routes.router, page.router),
    )
    routers = (*ours, page.live_router) if config.ui else ours
    routes = [route for one in routers for route in one.routes if getattr(route, "path", "") not in OF_PROCESSES]
    app = FastAPI(
        title="pyllmcancel",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        # First what is asked for most: each route that FastAPI asks costs time.
        routes=[*(Route(path, router) for path in paths), *routes],
    )
    app.state.server, app.state.router = state, router
    open_store = None if kept is None else lambda: kept
    query = b"" if keeper.idle_loads else b"autoload=false"
    app.state.batches = batches = Batches(app, lambda: keeper.n_slots, open_store, query)
    app.state.seats = Shares(config.limits.max_event_clients, keys.owners)
    app.router.default = router
    add_layers(app, config, state.keys, paths)
    if remotes is not None:
        app.add_middleware(Keyed, path=WORKERS_PATH, key=remotes.key, act=remotes.register)
    return app


class FrontServer(SupervisedServer):
    """uvicorn, which ends after the models' processes have: they end the requests, each with its proper answer."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, connections: Connections, hangups: Hangups | None) -> None:
        self._state: FrontState = app.state.server
        super().__init__(config, connections, hangups, self._state.keys, lambda: self._state.keeper.health)
        self._keeper = self._state.keeper
        self._reporting: asyncio.Task[None] | None = None

    def announce(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            specs = list(self._keeper.catalog.specs.values())
            names = [one.name + (f" ({one.replicas} replicas)" if one.replicas > 1 else "") for one in specs]
            shown = ", ".join(names[:MAX_SHOWN]) + (", …" if len(names) > MAX_SHOWN else "")
            address = url_of(listener, secure=self.config.is_ssl)
            what = f"{len(names)} model{'s'[: len(names) != 1]}: {shown}" if names else "the models of its workers"
            logger.info("running on %s, with %s", address, what)
        self._reporting = asyncio.create_task(self._report_ready(), name="report that the models are loaded")

    async def _report_ready(self) -> None:
        while self._keeper.health == "loading":
            await self._keeper.next_change().wait()
        self.supervision.look()

    def make_haste(self) -> None:
        if self.loop is not None:
            post(self.loop, self._keeper.hurry)
        super().make_haste()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("ending: the models' processes end first")
        self.supervision.stopping()
        if self._reporting is not None:
            self._reporting.cancel()
        self.connections.close()
        patience = self._state.config.drain + GRACE_SECONDS
        await asyncio.gather(self._keeper.close(), self._state.engine.end_all(patience, self.hurry))
        self.force_exit = False  # the answers have ended, and uvicorn waits for their last bytes
        await super().shutdown(sockets)
        self.supervision.stop()


def serve_models(
    config: ServerConfig,
    listeners: list[Listener],
    keeper: Keeper,
    *,
    store: Store | None,
    certificate: Certificate | None,
    hangups: Hangups | None,
) -> int:
    """Serve until a signal ends it; return the exit status. uvicorn raises the signal once more in the end."""
    connections = Connections(*config.limits.connections(), proxies=config.trusted_proxies)
    app = create_router_app(config, keeper, store)
    settings = uvicorn_config(app, config, connections, certificate, patience=GRACE_SECONDS)
    FrontServer(settings, app, connections, hangups).serve_until_signal(listeners)
    return 0
