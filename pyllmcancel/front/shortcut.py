"""The way to a model past FastAPI, whose search for a route would be a tenth of what a request costs this process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

NAMED = re.compile(r"\?P<\w+>")  # each name may be in one pattern only once


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
        patterns = [NAMED.sub("?:", route.path_regex.pattern) for route in routes if isinstance(route, Route)]
        self._own = re.compile("|".join(patterns))

    def _is_own(self, path: str) -> bool:
        # FastAPI redirects a path with a slash too many, or too few.
        other = path[:-1] if path.endswith("/") else path + "/"
        return bool(self._own.match(path) or self._own.match(other))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        goes_on = scope["type"] == "http" and not self._is_own(scope["path"])
        await (self._router if goes_on else self._app)(scope, receive, send)
