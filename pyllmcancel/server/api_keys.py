"""``--api-key``: who may use the server. Plain ASGI."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.request_context import request_id_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# The page and the documentation hold nothing that is not in this package: browsers cannot send a key with a visit.
PUBLIC_PATHS = frozenset({"/", "/health", "/v1/health", "/docs", "/openapi.json"})


class ApiKeys:
    """ASGI middleware: 401 for requests without any of the keys. As with llama-server, `X-Api-Key` will do too."""

    def __init__(self, app: ASGIApp, api_keys: tuple[str, ...]) -> None:
        self._app = app
        self._api_keys = tuple(key.encode() for key in api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] not in PUBLIC_PATHS and not self._opens(Headers(scope=scope)):
            app = ApiError(
                401,
                "missing or wrong API key",
                "authentication_error",
                code="invalid_api_key",
                extra_headers={"WWW-Authenticate": "Bearer"},
            ).response(request_id_of(scope))
        await app(scope, receive, send)

    def _opens(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        # Every pair is compared, in constant time, so that timing tells neither which nor how much matched. Headers
        # are Latin-1 by the protocol, keys are what was typed: compared as the bytes that were sent.
        given = [text.encode("latin-1") for text in (bearer, headers.get("x-api-key", ""))]
        return sum(hmac.compare_digest(sent, key) for sent in given for key in self._api_keys) > 0
