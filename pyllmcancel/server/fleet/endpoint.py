"""The endpoint to which other servers connect. Plain ASGI, outside of the API keys: peers have a key of their own."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from pyllmcancel.server.bodies import check_size
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.fleet.identity import KEY_HEADER, Envelope
from pyllmcancel.server.http.error_handlers import invalid_json, validation_error
from pyllmcancel.server.http.request_context import PEERS_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pyllmcancel.server.fleet.fleet import Fleet
    from pyllmcancel.server.fleet.identity import Identity

FOLLOW = "follow"  # the message that is answered by a stream
MAX_BODY = 4 << 20  # bytes
MAX_BODIES = 64 << 20  # of all bodies that are being read
MAX_VALUES = 100_000


class PeerEndpoint:
    """Answers messages that are posted to its path, and passes everything else on."""

    def __init__(self, app: ASGIApp, fleet: Fleet, me: Callable[[], Identity], key: str | None) -> None:
        self._app = app
        self._fleet = fleet
        self._key = None if key is None else key.encode()
        self._me = me
        self._n_bytes = 0  # the size of the bodies that are being read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PEERS_PATH:
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive)
        except Exception as error:
            shown = api_error(error)
            if shown.status == 500:
                raise
            answer = shown.response_to(scope)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        headers = Headers(scope=scope)
        if scope["method"] != "POST":
            raise ApiError(
                405, "peers send POST requests to this path", code="method_not_allowed", extra_headers={"Allow": "POST"}
            )
        given = headers.get(KEY_HEADER, "").encode("latin-1")
        # Compared in constant time, so that timing reveals nothing about the key.
        if self._key is not None and not hmac.compare_digest(given, self._key):
            raise ApiError(401, "missing or wrong peer key", "authentication_error", code="invalid_peer_key")
        # A browser sends the page's origin with every POST.
        if headers.get("origin") is not None or headers.get("sec-fetch-site") is not None:
            raise ApiError(403, "web pages may not use this endpoint", "permission_error", code="no_pages")
        envelope = envelope_of(await self._body_of(receive))
        me = self._me()
        reply = None
        if envelope.message is not None:
            why = me.differs(envelope.sender)
            if why is not None:
                raise ApiError(409, f"this server does not work with a server that {why}", code="peer_differs")
            if envelope.message.get("kind") == FOLLOW:
                return self._fleet.follow(envelope.message)
            reply = await self._fleet.receive(envelope.message)
        return JSONResponse({"sender": me.model_dump(), "reply": reply})

    async def _body_of(self, receive: Receive) -> bytes:
        """Read the body; ApiError 413 if it is too long, 429 if too many other bodies are being read."""
        body = bytearray()
        close = {"Connection": "close"}
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(499, "the peer has left", code="peer_left")
                piece = message.get("body", b"")
                body += piece
                self._n_bytes += len(piece)
                if len(body) > MAX_BODY:
                    told = f"a message has at most {MAX_BODY:,} bytes"
                    raise ApiError(413, told, code="body_too_large", extra_headers=close)
                if self._n_bytes > MAX_BODIES:
                    raise ApiError(429, "too many messages are being read", code="busy", extra_headers=close)
                if not message.get("more_body", False):
                    return bytes(body)
        finally:
            self._n_bytes -= len(body)


def envelope_of(text: bytes) -> Envelope:
    """Return the envelope; ApiError 400 if the body is not one."""
    check_size(text, MAX_VALUES)
    try:
        return Envelope.model_validate(from_json(text))
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_input=False)[0], is_json=True) from None
    except ValueError as error:
        raise invalid_json(f"the body is not valid JSON: {error}") from None
