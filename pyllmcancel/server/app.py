"""The ASGI application: routes, middleware, loading and closing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from pyllmcancel import __version__
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.loading import Loading
from pyllmcancel.server import page, routes_health, routes_models
from pyllmcancel.server.anthropic import routes as anthropic_routes
from pyllmcancel.server.batches import routes as batches_routes
from pyllmcancel.server.batches.running import Batches
from pyllmcancel.server.behind import FrontLinks
from pyllmcancel.server.bodies import arriving_paths
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.embeddings import routes as embeddings_routes
from pyllmcancel.server.from_front import WORKER_PATH, FromFront, act_on
from pyllmcancel.server.http.api_keys import ApiKeys, KeyRing
from pyllmcancel.server.http.body_limit import BodyLimit
from pyllmcancel.server.http.error_handlers import add_error_handlers
from pyllmcancel.server.http.heads import PlainHeads, TrustedProxies
from pyllmcancel.server.http.page_guard import PageGuard
from pyllmcancel.server.http.request_context import RequestContext
from pyllmcancel.server.http.web_origins import AllowedOrigins
from pyllmcancel.server.live import routes as live_routes
from pyllmcancel.server.llama import routes as llama_routes
from pyllmcancel.server.llama import routes_slots as llama_routes_slots
from pyllmcancel.server.llama import routes_state as llama_routes_state
from pyllmcancel.server.openai import routes as openai_routes
from pyllmcancel.server.openai import transcriptions as openai_transcriptions
from pyllmcancel.server.openapi.description import describe
from pyllmcancel.server.preparing import Arriving
from pyllmcancel.server.requests import routes as routes_requests
from pyllmcancel.server.responses import routes as responses_routes
from pyllmcancel.server.responses import routes_stored as responses_routes_stored
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.server.responses.stored import Responses
from pyllmcancel.server.running.metrics import EngineMetrics, LoopLag
from pyllmcancel.server.state import ServerState
from pyllmcancel.server.streams import routes as streams_routes

if TYPE_CHECKING:
    from pyllmcancel.server.running.tracing import Tracing  # needs an extra

# In the order in which they are asked whether a path is theirs.
ROUTERS = (
    openai_routes.router,
    openai_transcriptions.router,
    routes_requests.router,
    streams_routes.router,
    routes_health.router,
    routes_models.router,
    live_routes.router,
    llama_routes.router,
    llama_routes_state.router,
    llama_routes_slots.router,
    embeddings_routes.router,
    responses_routes.router,
    responses_routes_stored.router,
    batches_routes.router,
    anthropic_routes.router,
    page.router,
)
EXPOSED_HEADERS = (
    *("X-Request-Id", "request-id", "X-Ignored-Fields", "X-Unenforced", "X-Draft"),
    *("Retry-After", "x-should-retry", "X-Served-By", "X-Unreached"),
)


def create_app(
    config: ServerConfig,
    engine: Engine | None = None,
    metrics: EngineMetrics | None = None,
    loading: Loading | None = None,
    store: Store | None = None,
    *,
    tracing: Tracing | None = None,
) -> FastAPI:
    """Make the application. It serves with an `engine` that the caller closes, or with that of a load, which is closed
    at the end. By default one is loaded at start-up, in the background, while ``/health`` answers 503.

    `metrics` is the observer that the engine was made with; `tracing` is another one, closed after the engine: the
    process may end with this application. The `store` that `config` names may have been opened already; by default it
    is opened at its first use.
    """
    if engine is not None and loading is not None:
        raise ValueError("an application serves with one engine: give either `engine` or `loading`")
    state = ServerState(config, metrics)
    if engine is not None:
        state.adopt(engine)

    storage = config.storage
    responses = Responses(None if storage is None else lambda: Store(*storage), store)
    state.is_store_full = lambda: responses.full
    lag = LoopLag(state.metrics.lag.observe)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        lag.start()
        state.beside_loading = describing = asyncio.create_task(asyncio.to_thread(app.state.openapi_text))
        try:
            if engine is not None:
                await state.prepare()
            if storage is not None:
                batches.begin(batches.go_on())
            async with nullcontext() if engine is not None else _loaded(state, loading):
                yield
        finally:
            await batches.close()
            lag.stop()
            await asyncio.wait([describing])
            await state.streams.close()
            await responses.close()
            await state.end_helpers()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    routes = [*all_routes(ui=config.ui)]
    app = FastAPI(title="pyllmcancel", version=__version__, lifespan=lifespan, openapi_url=None, routes=routes)
    app.state.server, app.state.responses = state, responses
    open_store = None if storage is None else lambda: responses.store
    app.state.batches = batches = Batches(app, lambda: config.engine.parallel, open_store)
    add_layers(app, config, state.keys, arriving_paths(app.routes))
    describe(app, config)
    return app


@cache
def all_routes(*, ui: bool) -> Sequence[BaseRoute]:
    """Return the routes of all routers, ready for use.

    They are given to the application as they are: FastAPI makes the routes of an included router once more, in the
    event loop, when the first request comes. At an endpoint's first request FastAPI looks up its source, too, for the
    words of errors. Looked up here before, one endpoint of each file leaves the file in Python's cache of lines.
    """
    routers = (*ROUTERS, page.live_router) if ui else ROUTERS
    routes = [route for router in routers for route in router.routes]
    endpoints = [route.endpoint for route in routes if isinstance(route, APIRoute)]
    for endpoint in {inspect.getsourcefile(endpoint): endpoint for endpoint in endpoints}.values():
        with suppress(OSError, TypeError):  # no sources are installed
            inspect.getsourcelines(endpoint)
    return routes


@asynccontextmanager
async def _loaded(state: ServerState, loading: Loading | None) -> AsyncIterator[None]:
    """Load an engine inside the block, and close it at the end."""
    source = loading or Loading(state.config.engine, state.metrics)
    adopting = state.adopt_when_loaded(source)
    try:
        yield
    finally:
        try:
            await state.close(drain=0.0)
            if not await asyncio.to_thread(source.gives_up_soon):
                state.on_stuck_load()
            await adopting
        finally:
            await asyncio.to_thread(source.close)


def add_layers(app: FastAPI, config: ServerConfig, keys: KeyRing, paths: Mapping[str, bool]) -> None:
    """Add the outer layers, the innermost first. All are plain ASGI: Starlette's others hide clients that leave.

    `paths` are those of `Arriving`.
    """
    page.page_files()  # read and hashed before any request is served: in the event loop that would hold up all streams
    add_error_handlers(app)
    app.add_middleware(BodyLimit, limits=config.limits, owners=keys.owners)
    app.add_middleware(Arriving, paths=paths)
    if config.api_keys or config.worker_key is not None:
        app.add_middleware(ApiKeys, ring=keys)
    origins = AllowedOrigins(config.cors_origins)
    if config.cors_origins:
        # Outside of the keys: a browser's preflight carries none, and it shows a page no error without these headers.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins.exact,
            allow_origin_regex=origins.pattern,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(PageGuard, hosts=config.served_as(), origins=origins)
    app.add_middleware(RequestContext, served_by=config.replica, is_behind=config.worker_key is not None)
    if config.trusted_proxies:
        app.add_middleware(TrustedProxies, proxies=config.trusted_proxies)
    app.add_middleware(PlainHeads)
    if config.worker_key is not None:
        app.add_middleware(FrontLinks, engine=lambda: app.state.server.engine)
        act = partial(act_on, app.state.responses)
        app.add_middleware(FromFront, path=WORKER_PATH, key=config.worker_key, act=act)
