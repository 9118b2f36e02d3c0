"""``--trusted-proxies``: what a trusted proxy says of its client, and of the name that the client asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

FORWARDED_HOSTS = "forwarded_hosts"  # in a scope's state


class TrustedProxies:
    """ASGI middleware: uvicorn's own, and the ``X-Forwarded-Host`` of the same proxies is kept."""

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
    """The names for which trusted proxies were asked."""
    return cast("list[str]", scope["state"].get(FORWARDED_HOSTS, []))
