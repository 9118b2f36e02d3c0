"""``/openapi.json``, and ``/docs``, which shows it. FastAPI's own would make the page while the event loop waits."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from pyllmcancel.server.page import answer

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> JSONResponse:
    # A second of work, once: in a thread, for the event loop must notice clients that leave.
    return JSONResponse(await asyncio.to_thread(request.app.openapi))


@router.get("/docs")
@router.head("/docs")
async def docs(request: Request) -> Response:
    """Swagger UI, from this package: no other host is asked for anything."""
    return answer(request, "docs.html")
