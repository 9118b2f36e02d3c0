"""Reads and decompresses a request's body before its handler runs, and refuses one that is too long. Plain ASGI."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pyllmcancel.errors import RequestCancelled
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.http.api_keys import PUBLIC_PATHS
from pyllmcancel.server.http.encodings import Decoder, drop_encoding_headers
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.limits import LINGER_SECONDS, SMALL_BODY, Limits
from pyllmcancel.shares import Owners, Shares

WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyLimit:
    """ASGI middleware: 413 for a body that is too long, before it is read if its length is declared.

    A compressed body is decompressed here, and counts by its length before and after. Nobody behind this sees it
    compressed.

    The size of all bodies together is limited too: a body that does not fit beside the others gets 503. If several
    owners share the server, the bodies of one may take as much as they leave free, or the size of the longest body.
    """

    def __init__(self, app: ASGIApp, limits: Limits, owners: Owners, linger: float = LINGER_SECONDS) -> None:
        self._app = app
        self._limits = limits
        self._linger = linger
        self._held = Shares(limits.max_bodies, owners, limits.max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in WITHOUT_BODY or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        hold = exchange.hold = Hold(self._held, exchange.owner)

        async def send_when_used(message: Message) -> None:
            hold.release()  # the endpoint is done, and answers
            await send(message)

        try:
            try:
                whole = replayed(await self._read(scope, receive, hold), receive)
            except (ApiError, RequestCancelled) as error:
                await self._refuse(api_error(error), scope, receive, send)
            except ConnectionResetError:
                exchange.client_gone = True
            else:
                await self._app(scope, whole, send_when_used)
        finally:
            hold.release()

    async def _read(self, scope: Scope, receive: Receive, hold: Hold) -> bytes:
        """Read the whole body; ConnectionResetError if the client leaves before its end."""
        declared = Headers(scope=scope).get("content-length", "")
        self._check(int(declared[:20]) if declared.isdecimal() else 0)
        decoder = Decoder.of(scope)
        pieces: list[bytes] = []
        n_received, length, more = 0, 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            piece, more = message.get("body", b""), message.get("more_body", False)
            n_received += len(piece)
            for part in (piece,) if decoder is None else decoder.feed(piece):
                length += len(part)
                self._check(max(length, n_received))
                hold.grow(length)
                pieces.append(part)
                if decoder is not None:
                    await asyncio.sleep(0)  # others have their turns between two parts
        if decoder is not None:
            decoder.end()
            drop_encoding_headers(scope)
        return b"".join(pieces)

    def _check(self, length: int) -> None:
        if length > self._limits.max_body:
            message = f"the body is longer than {self._limits.max_body:,} bytes"
            raise ApiError(413, message, code="body_too_large")

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, read the rest of the body for a moment, and close, because the rest is not the next request."""
        error.extra_headers["Connection"] = "close"

        async def send_but_stay(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await error.response_to(scope)(scope, receive, send_but_stay)
        try:
            async with asyncio.timeout(self._linger):
                while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(slots=True)
class Hold:
    """One body's share of the limit."""

    _held: Shares
    _owner: str
    _taken: int = 0

    def grow(self, length: int) -> None:
        """Hold the room of a body that has this length so far; ApiError 503 if there is none."""
        self.add(length - self._taken if length > SMALL_BODY else 0)

    def add(self, n_bytes: int) -> None:
        """Hold more room until the answer begins, also for bytes that were fetched; ApiError 503 if there is none."""
        if n_bytes > 0:
            if not self._held.take(self._owner, n_bytes):
                message = "too many long bodies are being read; try again later"
                headers = {"Connection": "close"}
                raise ApiError(503, message, "server_error", code="busy", extra_headers=headers)
            self._taken += n_bytes

    def release(self) -> None:
        """Idempotent."""
        if self._taken:
            self._held.give_back(self._owner, self._taken)
            self._taken = 0


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first gives the body, which has been read, and then the client's later messages."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body_first() -> Message:
        return unread.pop() if unread else await receive()

    return receive_body_first
