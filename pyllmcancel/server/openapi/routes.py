"""``/openapi.json``, and ``/docs``, which shows it. FastAPI's own would make the page while the event loop waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pyllmcancel.server.page import answer

if TYPE_CHECKING:
    from pyllmcancel.server.openapi.page import Page

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    page: Page = request.app.state.openapi_page
    return Response(await page.text(), media_type="application/json")


@router.get("/docs")
@router.head("/docs")
async def docs(request: Request) -> Response:
    """Swagger UI, from this package: no other host is asked for anything."""
    return answer(request, "docs.html")
