"""The listing of an HTTP request in the engine as soon as its head is read, so that it can be cancelled from then on.

Its body comes and its prompt is prepared later. At first the request has the names in its headers. The names in its
body are added when the body has been read. A request that is answered before it is accepted leaves the list without a
trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request as HttpRequest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import Error
from pyllmcancel.events import RequestStatus
from pyllmcancel.requests.request import Names
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.workers import post
from pyllmcancel.server.origin import names_in_head, plain_origin
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.requests.request import Request


def arrive(http: HttpRequest, names: Names) -> Request:
    """Return the engine's request of an HTTP request. The first call lists it; later ones replace its names.

    RequestCancelled if it was cancelled before. InvalidRequestError, QueueFullError, EngineClosedError or ApiError if
    it cannot be listed.
    """
    engine, request = state_of(http).engine, exchange_of(http.scope).request
    if request is None:
        request = engine.arrive(**plain_origin(http), **names._asdict())
        exchange_of(http.scope).request = request
    else:
        engine.arrivals.name(request, names)
    return request


class Arriving:
    """ASGI middleware: lists requests from here on, before their bodies are read, until they are answered; those of
    `paths`, each with whether its requests belong to the groups that their headers name.
    """

    def __init__(self, app: ASGIApp, paths: Mapping[str, bool]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        grouped = self._paths.get(scope["path"])
        if grouped is not None:
            http = HttpRequest(scope)
            # An error is raised again, and answered, when the body has been read.
            with suppress(Error, ApiError):
                receive = body_until_cancelled(http, arrive(http, names_in_head(http) if grouped else Names()), receive)

        async def send_after_leaving(message: Message) -> None:
            leave(scope)  # first: a client that was refused may send another request of this id
            await send(message)

        try:
            await self._app(scope, receive, send_after_leaving)
        finally:
            leave(scope)


def leave(scope: Scope) -> None:
    """End a request that was not accepted: it is refused, or its client has left."""
    exchange = exchange_of(scope)
    request = exchange.request
    if request is None or request.status is not RequestStatus.PREPARING:
        return
    engine = state_of(HttpRequest(scope)).engine
    if exchange.client_gone or not engine.arrivals.refuse(request):
        engine.cancel(request, CancelReason.DISCONNECT)


def body_until_cancelled(http: HttpRequest, request: Request, receive: Receive) -> Receive:
    """Return a `receive` that raises RequestCancelled, once, if the request is cancelled while its body comes."""
    engine, is_body, loop = state_of(http).engine, True, asyncio.get_running_loop()

    async def receive_body() -> Message:
        nonlocal is_body
        was_refused = request.cancellation.sealed and not request.cancellation.requested
        if was_refused or not is_body:
            return await receive()
        is_body = False
        try:
            async with asyncio.timeout(None) as limit:

                def expire() -> None:
                    with suppress(RuntimeError):  # the block was left before
                        limit.reschedule(loop.time())

                with working(engine, request, partial(post, loop, expire)):
                    message = await receive()
        except TimeoutError:
            if not limit.expired() or not request.cancellation.requested:
                raise
            raise request.cancel_error() from None
        is_body = message.get("more_body", False)
        return message

    return receive_body


@contextmanager
def working(engine: Engine, request: Request, give_up: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Be responsible for a request in preparation; RequestCancelled if it was cancelled before."""
    engine.registry.begin_work(request, give_up)
    try:
        yield
    finally:
        engine.arrivals.end_work(request)
