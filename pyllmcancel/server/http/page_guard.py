"""The guard against other web pages: it refuses names that are not the server's, and pages that are not allowed. Plain
ASGI.

Three headers are checked, none of which a page can set. ``Host``: to its browser, a page whose name was rebound to this
machine is the server's own (see `pyllmcancel.server.host_names`). ``Origin`` and ``Sec-Fetch-Site``: any page may send
a request, and can do harm without reading the answer. A browser omits ``Sec-Fetch-Site`` on a connection that it does
not trust (HTTP to another machine), and ``Origin`` if a page only fetches.

Starlette's ``TrustedHostMiddleware`` does not fit: it answers 400 in plain text, and cannot accept all addresses.
"""

from __future__ import annotations

import shlex

from starlette.types import ASGIApp, Receive, Scope, Send

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.host_names import HostNames
from pyllmcancel.server.http.api_keys import is_public
from pyllmcancel.server.http.heads import forwarded_hosts
from pyllmcancel.server.http.web_origins import AllowedOrigins, is_own

FETCHES = ("GET", "HEAD")
OWN_SITES = ("", "same-origin", "none")  # the request comes from no page: typed, from a bookmark, or not from a browser
MAX_SHOWN = 100  # characters that are repeated to the client


class PageGuard:
    """ASGI middleware: 421 for a name that is not in `hosts` (None: any is), 403 for a page not in `origins`."""

    def __init__(self, app: ASGIApp, hosts: HostNames | None, origins: AllowedOrigins) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (error := self._error(scope)) is not None:
            app = error.response_to(scope)
        await app(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        """Return why this request is not served."""
        hosts, origins, sites = [], [], []
        for name, value in scope["headers"]:
            match name:
                case b"host" if value:
                    hosts.append(value.decode("latin-1"))
                case b"origin":
                    origins.append(value.decode("latin-1"))
                case b"sec-fetch-site":
                    sites.append(value.decode("latin-1"))
        hosts += forwarded_hosts(scope)
        if self._hosts is not None:
            for host in hosts:
                if host not in self._hosts:
                    return unknown_host(host)
        if not (origins or sites) or self._origins.all:
            return None
        return self._page_error(scope, hosts, origins, sites)

    def _page_error(self, scope: Scope, hosts: list[str], origins: list[str], sites: list[str]) -> ApiError | None:
        """Return why a browser's request is not served, if its page is another's and not allowed."""
        method: str = scope["method"]
        if method == "OPTIONS" or (method in FETCHES and is_public(scope["path"])):
            return None
        others = [origin for origin in origins if origin not in self._origins]
        if origins and not others:
            return None
        secure = scope["scheme"] == "https"
        for origin in others:
            if not any(is_own(origin, host, secure=secure) for host in hosts):
                return foreign_page(origin, hosts)
        return None if all(site in OWN_SITES for site in sites) else foreign_site()


def unknown_host(host: str) -> ApiError:
    name = host[:MAX_SHOWN]
    option = f"--allowed-hosts {shlex.quote(name.partition(':')[0])}"
    message = (
        f"this server is not known by the name {name!r}. If that is its name, start it with {option}, or with a key"
    )
    return ApiError(421, message, code="unknown_host")


def foreign_page(origin: str, hosts: list[str]) -> ApiError:
    shown = origin[:MAX_SHOWN]
    message = (
        f"pages of {shown} may not use this server, which was asked as {', '.join(hosts)[:MAX_SHOWN] or 'nobody'}."
        f" To allow them: start it with --cors-origins {shlex.quote(shown)}"
    )
    return ApiError(403, message, "permission_error", code="foreign_origin")


def foreign_site() -> ApiError:
    message = (
        "pages of other origins may not use this server, and this request does not say which one sent it."
        " To allow a page: start the server with --cors-origins, and have the page fetch with CORS"
    )
    return ApiError(403, message, "permission_error", code="foreign_origin")
