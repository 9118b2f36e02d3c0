"""What every HTTP request gets, whatever it asks for: an id, an access check, a log line. Plain ASGI.

Not a Starlette ``BaseHTTPMiddleware``: that one hides ``http.disconnect`` from the handlers, and with it every client
that leaves.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from pyllmcancel.server.error_responses import CLIENT_CLOSED_REQUEST, ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

access_log = logging.getLogger("pyllmcancel.access")

SANE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
PUBLIC_PATHS = frozenset({"/health", "/v1/health", "/"})


def request_id_of(scope: Scope) -> str:
    """The id that the middleware gave this request, or took from its client."""
    request_id: str = scope["state"]["request_id"]
    return request_id


def mark_client_gone(scope: Scope) -> None:
    """For the log: there was nobody left to answer."""
    scope["state"]["client_gone"] = True


class RequestContext:
    """Outermost ASGI application."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...] = ()) -> None:
        self._app = app
        self._api_keys = tuple(key.encode() for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id")
        sane = given is None or SANE_ID.fullmatch(given) is not None
        request_id = given if given is not None and sane else f"req-{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            refusal = self._refusal(scope["path"], headers, sane)
            app = self._app if refusal is None else refusal.response(request_id)
            await app(scope, receive, send_with_id)
        finally:
            if scope["state"].get("client_gone"):
                status = CLIENT_CLOSED_REQUEST
            self._log(scope, request_id, status or 500, time.monotonic() - began)

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        # Looking on is not worth a line: health checks, scrapers and the live page would drown the story.
        level = logging.DEBUG if scope["method"] == "GET" and status < 400 else logging.INFO
        access_log.log(
            level, '%s "%s %s" %d %.0f ms', request_id, scope["method"], scope["path"], status, seconds * 1e3
        )

    def _refusal(self, path: str, headers: Headers, sane_id: bool) -> ApiError | None:
        if not self._authorised(path, headers):
            return ApiError(401, "missing or wrong API key", "authentication_error", code="invalid_api_key")
        if not sane_id:
            return ApiError(400, f"X-Request-Id must match {SANE_ID.pattern}", param="X-Request-Id", code="bad_id")
        return None

    def _authorised(self, path: str, headers: Headers) -> bool:
        if not self._api_keys or path in PUBLIC_PATHS:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode() if scheme.lower() == "bearer" else b""
        # Every key is compared, in constant time, so that timing tells neither which nor how much matched.
        return sum(hmac.compare_digest(given, expected) for expected in self._api_keys) > 0
