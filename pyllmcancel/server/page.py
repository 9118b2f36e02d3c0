"""The live page at ``/``, the documentation at ``/docs``, and the files of both, as they are in the package. They need
no key.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from pyllmcancel.server.errors.responses import ApiError

# A router of its own, because the live page can be switched off; the documentation needs its files even then.
live_router = APIRouter(tags=["Health"])
router = APIRouter(include_in_schema=False)

PREFIX = "/page/"
FOLDER = Path(__file__).parents[1] / "page"
NO_ADDRESS = b'<meta name="documentation">'  # gets the address of the documentation, if there is one
MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "png": "image/png",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "woff2": "font/woff2",
}
# The page may load files from its own host only, and nothing inline: injected markup could not run anything.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'"
    "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Files are revalidated each time, and answered with 304: a page of another version than its server would be worse.
    "Cache-Control": "no-cache",
}


@live_router.get("/", summary="The live page: running requests, each with a cancel button", response_class=HTMLResponse)
@live_router.head("/", include_in_schema=False)  # Claude Code sends this request first
async def live_page(request: Request) -> Response:
    return answer(request, "index.html")


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """FastAPI's own endpoint would make the description while the event loop waits."""
    text = await asyncio.to_thread(request.app.state.openapi_text)  # written already, unless the application is mounted
    return Response(text, media_type="application/json")


@router.get("/docs")
@router.head("/docs")
async def docs(request: Request) -> Response:
    """Swagger UI, from this package: no other host is asked for anything."""
    return answer(request, "docs.html")


@router.get(PREFIX + "{path:path}")
@router.head(PREFIX + "{path:path}")
async def page_file(request: Request, path: str) -> Response:
    return answer(request, path)


def answer(request: Request, path: str) -> Response:
    """Return a file of the page; ApiError 404 if there is none of that name."""
    found = page_files().get(path)
    if found is None:
        raise ApiError(404, "the page has no such file", code="not_found")
    content, etag = found
    headers = HEADERS | {"ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=MEDIA_TYPES[path.rpartition(".")[2]])


@cache
def page_files() -> dict[str, tuple[bytes, str]]:
    """Return all files of the page by their paths, with their entity tags. Other files are not served."""
    found = {}
    address = documentation_url()
    for file in FOLDER.rglob("*"):
        path = file.relative_to(FOLDER).as_posix()
        if path.rpartition(".")[2] not in MEDIA_TYPES or file.is_dir():
            continue
        content = file.read_bytes()
        if path.endswith(".html") and address is not None:
            content = content.replace(NO_ADDRESS, f'<meta name="documentation" content="{escape(address)}">'.encode())
        found[path] = content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return found


def documentation_url() -> str | None:
    """Return the address of the documentation, to which the server's own pages lead: the ``Documentation`` of the
    package's metadata, or its pages at ``Source``; None if it was built without both.
    """
    try:
        entries = metadata("pyllmcancel").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    addresses = dict(entry.split(", ", 1) for entry in entries)
    source = addresses.get("Source")
    return addresses.get("Documentation", source and f"{source}/blob/HEAD/docs/index.md")
