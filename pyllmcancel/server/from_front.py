"""A server that a front uses: the key by which it knows the front, and what the front asks beside clients' requests.

With the key the front is believed: who sent a request, when it came, and from which address. Without the key, headers
that only the front may send are dropped. Plain ASGI.
"""

from __future__ import annotations

import hmac
import math
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import JSONResponse, Response

from pyllmcancel.server.behind import AGAIN, LINK
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.http.error_handlers import invalid_body
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.request_context import ARRIVED, new_request_id
from pyllmcancel.server.http.workers import ClientLeft
from pyllmcancel.server.limits import MAX_TO_WORKERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from pyllmcancel.server.responses.stored import Responses

S = TypeVar("S", bound="Said")
WORKER_PATH, WORKERS_PATH = "/v1/worker", "/v1/workers"  # of a worker's endpoint, and of its front's
KEY_HEADER = b"x-worker-key"
OWNER = b"x-front-owner"
FORWARDED = b"x-forwarded-for"
INTERNAL = frozenset({KEY_HEADER, OWNER, LINK, AGAIN, ARRIVED})  # headers that only a front may send
MAX_BODY = 5 * MAX_TO_WORKERS  # a character may take four bytes

# -- messages: plain JSON ---------------------------------------------------------------------------------------------


class Said(BaseModel):
    """The base of all. An unknown field is refused, because ignoring it could ignore a condition."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(Said):
    """A part of a conversation."""

    items: list[dict[str, Any]]
    missing: str | None  # the response before it, which is not here; the one that was asked for if nothing is here


class Message(Said):
    """Ask for a conversation up to a response, with its output; or hand a part of it over, which another worker has,
    before a request that goes on from it.
    """

    owner: str
    id: str
    items: bool = False  # else only what is missing of it is asked for
    part: Part | None = None  # that is handed over


async def act_on(responses: Responses, content: bytes, _scope: Scope) -> Part:
    """Act on a front's message."""
    message = checked(Message, content)
    if message.part is None:
        return Part.model_construct(**await responses.part(message.owner, message.id, items=message.items))
    responses.have(message.owner, message.id, message.part.items, message.part.missing)
    return Part(items=[], missing=None)


# -- the key ----------------------------------------------------------------------------------------------------------


class Keyed:
    """ASGI middleware: an endpoint for those who have a key. `act` returns what to answer to the body of a request."""

    def __init__(self, app: ASGIApp, path: str, key: str, act: Callable[[bytes, Scope], Awaitable[Said]]) -> None:
        self._app = app
        self._path = path
        self._key = key.encode()
        self._act = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            given = next((value for name, value in scope["headers"] if name == KEY_HEADER), b"")
            # Compared in constant time, so that timing reveals nothing about the key.
            has_key = hmac.compare_digest(given, self._key)
            self.note(scope, has_key=has_key)
            if scope["path"] == self._path:
                app = await self._answer(scope, receive, has_key=has_key)
        await app(scope, receive, send)

    def note(self, scope: Scope, *, has_key: bool) -> None:
        """Note who has sent a request."""

    async def _answer(self, scope: Scope, receive: Receive, *, has_key: bool) -> Response:
        try:
            if not has_key:
                raise ApiError(401, "missing or wrong worker key", "authentication_error", code="invalid_worker_key")
            said = await self._act(await body_of(receive, MAX_BODY), scope)
        except ClientLeft:
            return Response()
        except Exception as error:
            shown = api_error(error)
            if shown.status == 500:
                raise
            return shown.response(new_request_id())
        return JSONResponse(said.model_dump(mode="json", warnings=False))


class FromFront(Keyed):
    """The outermost ASGI application of a server that a front uses."""

    def note(self, scope: Scope, *, has_key: bool) -> None:
        if not has_key:
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in INTERNAL]
            return
        headers, exchange = dict(scope["headers"]), exchange_of(scope)
        exchange.is_from_front = True
        if (sender := headers.get(OWNER)) is not None:
            exchange.is_admin, exchange.sees_all = sender[:1] == b"1", sender[1:2] == b"1"
            exchange.owner = sender[2:].decode()
        if (client := headers.get(FORWARDED)) is not None:
            scope["client"] = client.decode("latin-1"), 0


def owner_header(scope: Scope, *, sees_all: bool) -> tuple[bytes, bytes]:
    """Return the header that tells a worker who has sent a request to the front."""
    exchange = exchange_of(scope)
    return OWNER, b"%d%d%b" % (exchange.is_admin, sees_all, exchange.owner.encode())


def checked(kind: type[S], content: bytes) -> S:
    """Return the message; ApiError 400 if the JSON is none."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise invalid_body(error) from None


async def body_of(receive: Receive, most: float = math.inf) -> bytes:
    """Read the body; ApiError 413 if it is too long, ClientLeft if its sender leaves before its end."""
    pieces, length, more = list[bytes](), 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        pieces.append(message.get("body", b""))
        length += len(pieces[-1])
        if length > most:
            limit = f"a message has at most {most:,} bytes"
            raise ApiError(413, limit, code="body_too_large", extra_headers={"Connection": "close"})
        more = message.get("more_body", False)
    return b"".join(pieces)
