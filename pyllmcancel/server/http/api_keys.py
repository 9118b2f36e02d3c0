"""``--api-key``: the check of keys, and the owners of requests. Plain ASGI.

Every key has an owner. An owner's names (ids, sessions, supersede keys) and cached prefixes are its own: others can
neither see, cancel, supersede nor hold them, and may use the same names. Without keys everything belongs to one owner.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pyllmcancel.server.config import ADMIN, ServerConfig
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.shares import Owners

# The page and the documentation contain nothing that is not in this package, and browsers cannot send a key with a
# visit.
PUBLIC_PATHS = frozenset({"/", "/health", "/v1/health", "/docs", "/openapi.json"})

PUBLIC_FILES = "/page/"


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FILES)


class KeyRing:
    """The keys that are valid now, which may change while the server serves. Used in the event loop only."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config  # of the start
        self.owners = Owners(several=config.shared)
        self.replace(config)

    def replace(self, config: ServerConfig) -> None:
        """Accept these keys from the next request on. Requests that were admitted by others go on."""
        self.keys = [(key.encode(), owner, False) for owner, key in config.api_keys]
        self.keys += [(key.encode(), ADMIN, True) for key in config.admin_api_keys]


class ApiKeys:
    """ASGI middleware: 401 for requests without a key, in `X-Api-Key` too, unless a front has sent them."""

    def __init__(self, app: ASGIApp, ring: KeyRing) -> None:
        self._app = app
        self._ring = ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not is_public(scope["path"]) and not self._admit(scope):
            app = ApiError(
                401,
                "missing or wrong API key",
                "authentication_error",
                code="invalid_api_key",
                extra_headers={"WWW-Authenticate": "Bearer"},
            ).response_to(scope)
        await app(scope, receive, send)

    def _admit(self, scope: Scope) -> bool:
        """Note in `scope` the owner of the request's key; False if it has no valid key."""
        exchange = exchange_of(scope)
        if exchange.is_from_front:
            self._ring.owners.several |= exchange.is_admin or exchange.sees_all is False
            return True
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip(" \t") if scheme.lower() == "bearer" else ""
        # Every pair is compared, in constant time, so that timing reveals neither which key matched nor how much of it.
        # Headers are Latin-1 by the protocol, and keys are as typed, so the sent bytes are compared. A key may contain
        # a character that Latin-1 calls a blank, so only the protocol's blanks are stripped.
        given = [text.encode("latin-1") for text in (bearer, headers.get("x-api-key", ""))]
        found = [
            (owner, admin) for sent in given for key, owner, admin in self._ring.keys if hmac.compare_digest(sent, key)
        ]
        if found:
            exchange.owner, exchange.is_admin = found[0]
        return bool(found)
