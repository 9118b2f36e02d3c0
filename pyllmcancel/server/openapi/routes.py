"""``/openapi.json``, and ``/docs``, which shows it. FastAPI's own would make the page while the event loop waits."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pyllmcancel.server.page import answer

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    text = await asyncio.to_thread(request.app.state.openapi_text)  # written already, unless the application is mounted
    return Response(text, media_type="application/json")


@router.get("/docs")
@router.head("/docs")
async def docs(request: Request) -> Response:
    """Swagger UI, from this package: no other host is asked for anything."""
    return answer(request, "docs.html")
