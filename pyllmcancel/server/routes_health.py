"""``/health`` and ``/metrics``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from pyllmcancel.server.errors.responses import RETRY_AFTER_SECONDS, unsupported
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.openapi.description import answer_of, answers, errors
from pyllmcancel.server.requests.visible import check_may_see_all
from pyllmcancel.server.state import Healthy, Unhealthy, state_of

router = APIRouter(tags=["Health"])
MetricsFormat = Annotated[
    Literal["llama-server"] | None, Query(description="`llama-server`: fewer metrics, under llama-server's names.")
]


@router.get(
    "/health",
    summary="200 when requests can be served, 503 while loading or when something is wrong",
    responses=answers(Healthy) | {503: answer_of(Unhealthy, "Requests cannot be served now; the body says why")},
)
@router.get("/v1/health", include_in_schema=False)
@router.head("/health", include_in_schema=False)
@router.head("/v1/health", include_in_schema=False)
async def health(request: Request) -> JSONResponse:
    state = state_of(request)
    body = state.health(to_front=exchange_of(request.scope).is_from_front)
    if body["status"] == "ok":
        return JSONResponse(body)
    return JSONResponse(body, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses=errors(501) | {200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request, format: MetricsFormat = None) -> Response:  # noqa: A002 - the name on the wire
    if not state_of(request).config.metrics:
        raise unsupported("metrics are switched off (--metrics)")
    check_may_see_all(request)
    found = state_of(request).metrics
    text = found.exposition() if format is None else found.llama_exposition()
    return Response(text, media_type=CONTENT_TYPE_LATEST)
