"""``--trusted-proxies``: the client and the host name that a trusted proxy reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

UNIX = "unix"  # the address of whoever connects to a Unix socket
FORWARDED_HOSTS = "forwarded_hosts"  # in a scope's state


class TrustedProxies:
    """ASGI middleware: uvicorn's own; it also keeps the ``X-Forwarded-Host`` of the same proxies."""

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
