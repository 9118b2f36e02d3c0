"""The ASGI application: routes, error shapes, loading and closing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from pyllmcancel.errors import Error
from pyllmcancel.server import routes_health, routes_openai, routes_requests
from pyllmcancel.server.error_responses import ApiError, api_error
from pyllmcancel.server.request_context import RequestContext, mark_client_gone, request_id_of
from pyllmcancel.server.state import ServerState

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

    from pyllmcancel.engine import Engine
    from pyllmcancel.server.metrics import EngineMetrics
    from pyllmcancel.server.state import ServerConfig

logger = logging.getLogger("pyllmcancel.server")


def create_app(config: ServerConfig, engine: Engine | None = None, metrics: EngineMetrics | None = None) -> FastAPI:
    """Make the application.

    Parameters
    ----------
    engine
        Serve with this one, whose owner the caller stays; by default one is loaded at start-up, in the background,
        while ``/health`` says 503.
    metrics
        The observer that `engine` was made with, for ``/metrics``.
    """
    state = ServerState(config, metrics)
    if engine is not None:
        state.adopt(engine)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loading = None if engine is not None else asyncio.create_task(state.load())
        try:
            yield
        finally:
            if loading is not None:
                await state.close(drain=0.0)  # cancels the load, if it still goes on
                await loading
                await state.close(drain=0.0)

    app = FastAPI(title="pyllmcancel", version="0.1.0", lifespan=lifespan)
    app.state.server = state
    for routes in (routes_openai, routes_requests, routes_health):
        app.include_router(routes.router)
    app.add_exception_handler(ApiError, on_error)
    app.add_exception_handler(Error, on_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_error)
    app.add_middleware(RequestContext, api_keys=config.api_keys)
    return app


async def on_error(request: Request, error: Exception) -> JSONResponse:
    shown = api_error(error)
    if shown.status == 500:
        logger.error("request %s failed", request_id_of(request.scope), exc_info=error)
    return shown.response(request_id_of(request.scope))


async def on_validation_error(request: Request, error: Exception) -> JSONResponse:
    """Pydantic's findings as one OpenAI error: the first field at fault, in words."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    if first["type"] == "json_invalid":
        shown = ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    elif first["type"] == "model_attributes_type" and not where:
        message = "the body must be a JSON object, sent with Content-Type: application/json"
        shown = ApiError(400, message, code="invalid_request")
    elif first["type"] == "extra_forbidden":
        shown = ApiError(400, f"unsupported field: {'.'.join(where)}", param=where[0], code="unsupported_field")
    else:
        param = where[0] if where else None
        shown = ApiError(400, f"{'.'.join(where) or 'body'}: {first['msg']}", param=param, code="invalid_request")
    return shown.response(request_id_of(request.scope))


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, ClientDisconnect):
        mark_client_gone(request.scope)
    shown = ApiError(error.status_code, str(error.detail), code="http_error")
    response = shown.response(request_id_of(request.scope))
    response.headers.update(error.headers or {})
    return response
