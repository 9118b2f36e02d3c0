"""``/openapi.json``, and ``/docs``, which shows it. FastAPI's own would make the page while the event loop waits."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> JSONResponse:
    # A second of work, once: in a thread, for the event loop must notice clients that leave.
    return JSONResponse(await asyncio.to_thread(request.app.openapi))


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Swagger UI, whose scripts come from a CDN."""
    return get_swagger_ui_html(openapi_url="openapi.json", title="pyllmcancel")
