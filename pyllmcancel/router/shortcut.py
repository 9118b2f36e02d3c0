"""The way to a model past FastAPI, whose search for a route would be a tenth of what a request costs this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_PATHS = 256  # that are remembered; clients use few


class Shortcut:
    """The innermost ASGI middleware: a path that is none of `routes` goes to `router` at once.

    Parameters
    ----------
    app
        Gets what is left, with the methods that a route does not have.
    """

    def __init__(self, app: ASGIApp, router: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._router = router
        patterns = [route.path_regex for route in routes if isinstance(route, Route)]

        @lru_cache(MAX_PATHS)
        def is_own(path: str) -> bool:
            # FastAPI redirects a path with a slash too many, or too few.
            other = path[:-1] if path.endswith("/") else path + "/"
            return any(pattern.match(one) for pattern in patterns for one in (path, other))

        self._is_own = is_own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        goes_on = scope["type"] == "http" and not self._is_own(scope["path"])
        await (self._router if goes_on else self._app)(scope, receive, send)
