"""The middleware for heads that few clients send: absolute targets, two lengths, a proxy's reports. Plain ASGI."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
CLOSE = (b"connection", b"close")
UNIX = "unix"  # the address of whoever connects to a Unix socket
FORWARDED_HOSTS = "forwarded_hosts"  # in a scope's state


class PlainHeads:
    """Gives a head the form that most clients would send, before other middleware reads it.

    See RFC 9112, 3.2.2 and 6.3. The host in an absolute target, as for a proxy, replaces ``Host``. A ``Content-Length``
    beside ``Transfer-Encoding`` is ignored, and the connection ends with the answer: a proxy on the way may have used
    the length, and take the rest for another request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            absolute = ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
            if absolute is not None:
                scope = with_relative_target(scope, *absolute.groups())
            names = {name for name, _ in scope["headers"]}
            if names >= {b"content-length", b"transfer-encoding"}:
                plain = without(scope["headers"], b"content-length")
                # In uvicorn's own list, too: the answer to an unexpected error does not come by this middleware.
                scope["headers"].append(CLOSE)
                scope = {**scope, "headers": plain}
                send = closing(send)
        await self._app(scope, receive, send)


def with_relative_target(scope: Scope, authority: bytes, rest: bytes) -> Scope:
    target = rest if rest.startswith(b"/") else b"/" + rest
    headers = [*without(scope["headers"], b"host"), (b"host", authority)]
    return {**scope, "raw_path": target, "path": unquote(target.decode("latin-1")), "headers": headers}


def closing(send: Send) -> Send:
    """Return a `send` that makes the answer the connection's last."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*without(message.get("headers", ()), b"connection"), CLOSE]}
        await send(message)

    return send_and_close


def without(headers: list[tuple[bytes, bytes]], *names: bytes) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0].lower() not in names]


class TrustedProxies:
    """``--trusted-proxies``: uvicorn's own ASGI middleware; it also keeps the ``X-Forwarded-Host`` of these proxies."""

    def __init__(self, app: ASGIApp, proxies: tuple[str, ...]) -> None:
        self._layer = ProxyHeadersMiddleware(app, list(proxies))  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and client[0] in self._layer.trusted_hosts:
            scope.setdefault("state", {})[FORWARDED_HOSTS] = [
                name.strip()
                for header, value in scope["headers"]
                if header == b"x-forwarded-host"
                for name in value.decode("latin-1").split(",")
                if name.strip()
            ]
        await self._layer(scope, receive, send)  # type: ignore[arg-type]


def forwarded_hosts(scope: Scope) -> list[str]:
    """Return the names that trusted proxies were asked for."""
    return cast("list[str]", scope["state"].get(FORWARDED_HOSTS, []))
