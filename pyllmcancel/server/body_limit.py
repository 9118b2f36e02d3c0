"""Reads a request's body before anybody looks at it, and refuses one that is too long. Plain ASGI."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.request_context import mark_client_gone, request_id_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# How long a refused client may go on sending: closing while it does makes its kernel drop the answer unread.
LINGER_SECONDS = 2.0
WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyLimit:
    """ASGI middleware: 413 for a body of more than `max_body` bytes, before it is read if its length is declared."""

    def __init__(self, app: ASGIApp, max_body: int, linger: float = LINGER_SECONDS) -> None:
        self._app = app
        self._max_body = max_body
        self._linger = linger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        body = None
        if not declared.isdecimal() or int(declared) <= self._max_body:
            try:
                body = await self._read(receive)
            except ConnectionResetError:
                mark_client_gone(scope)
                return
        if body is None:
            await self._refuse(scope, receive, send)
        else:
            await self._app(scope, replayed(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None if it is too long, ConnectionResetError if the client leaves before its end."""
        pieces, length, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            piece, more = message.get("body", b""), message.get("more_body", False)
            length += len(piece)
            if length > self._max_body:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, read what still comes for a moment, and close: the rest of the body is no next request."""
        error = ApiError(
            413,
            f"the body is longer than {self._max_body:,} bytes",
            code="body_too_large",
            extra_headers={"Connection": "close"},
        )

        async def send_but_stay(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await error.response(request_id_of(scope))(scope, receive, send_but_stay)
        try:
            async with asyncio.timeout(self._linger):
                while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that tells of the body, which has been read, and then of what really happens."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body_first() -> Message:
        return unread.pop() if unread else await receive()

    return receive_body_first
