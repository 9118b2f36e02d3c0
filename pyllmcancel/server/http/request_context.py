"""The middleware that gives every HTTP request an id and a log line. Plain ASGI.

It is not a Starlette ``BaseHTTPMiddleware``, which hides ``http.disconnect`` from the handlers, and with it every
client that leaves.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextlib import suppress
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyllmcancel.server.errors.responses import CLIENT_CLOSED_REQUEST, ApiError
from pyllmcancel.server.errors.shapes import shape_of
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.unknown_fields import HEADER, IgnoredLog

access_log = logging.getLogger("pyllmcancel.access")

# The process in front of several models' says in it when a request arrived.
ARRIVED = b"x-arrived"
SANE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


def new_request_id() -> str:
    return f"req-{secrets.token_hex(8)}"


def arrival_header(scope: Scope, ahead: float) -> bytes:
    """Return the value of `ARRIVED`, by a monotonic clock that is `ahead` seconds ahead: 0 on the same machine."""
    return f"{exchange_of(scope).arrived_at + ahead!r}".encode()


def arrival_of_header(scope: Scope, now: float) -> float:
    """Return the time that the process in front says; now if it says none, or a later one."""
    with suppress(ValueError):
        return min(now, float(next((value for name, value in scope["headers"] if name == ARRIVED), b"")))
    return now


class RequestContext:
    """Gives each request its id and its line in the log; outside of all middleware.

    Answers have the server's name, if it has one. The process in front, if it `is_behind` one, says when requests
    arrived.
    """

    def __init__(self, app: ASGIApp, served_by: str | None = None, *, is_behind: bool = False) -> None:
        self._app = app
        self._served_by = served_by
        self._is_behind = is_behind
        self._ignored = IgnoredLog()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id")
        sane = given is None or SANE_ID.fullmatch(given) is not None
        request_id = given if given is not None and sane else new_request_id()
        exchange, began = exchange_of(scope), time.monotonic()
        exchange.request_id = request_id
        exchange.arrived_at = arrival_of_header(scope, began) if self._is_behind else began
        ids = dict.fromkeys(shape_of(scope).id_headers, request_id)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(ids)
                reports = {"X-Unenforced": exchange.unenforced, "X-Unreached": exchange.unreached}
                for name, found in ({HEADER: exchange.ignored} | reports).items():
                    if found:
                        headers[name] = ", ".join(found)
                self._ignored.log(scope, exchange.ignored)
                if self._served_by is not None:
                    headers["X-Served-By"] = self._served_by
            await send(message)

        try:
            app = self._app if sane else bad_id().response_to(scope)
            await app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            exchange.client_gone = True  # some servers end a body like this
            raise
        finally:
            if exchange.client_gone:
                status = CLIENT_CLOSED_REQUEST
            self._log(scope, request_id, status or 500, time.monotonic() - began)

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        # Requests that only read are not logged: health checks, scrapers and the live page would bury the other lines.
        quiet = scope["method"] == "GET"
        # A server that is loading says so to every health check.
        is_fine = status < 400 or (status == 503 and scope["path"] == "/health")
        level = logging.DEBUG if quiet and is_fine else logging.INFO
        if not access_log.isEnabledFor(level):
            return
        # Quoted once more: a path may contain line feeds, and with them forged lines.
        path = quote(scope["path"], safe="/:@+=,~")
        facts = {
            "request_id": request_id,
            "client": (scope.get("client") or (None,))[0],
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
        }
        text = '%s "%s %s" %d %.0f ms'
        access_log.log(level, text, request_id, scope["method"], path, status, seconds * 1e3, extra=facts)


def bad_id(param: str = "X-Request-Id") -> ApiError:
    return ApiError(400, f"{param} must match {SANE_ID.pattern}", param=param, code="bad_id")
