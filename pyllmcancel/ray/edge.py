"""The connection between a replica and Ray: the HTTP protocol of the replica's listener, and changes of requests on
their way in.

In HAProxy mode Ray makes a listener with uvicorn for each replica. So a client's leaving is seen on the connection,
before any event loop notices it; see `pyllmcancel.server.http.connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn.config

from pyllmcancel.server.http.connection import CONNECTION, Cancel, Connection
from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.heads import PlainHeads
from pyllmcancel.server.http.protocol import WatchfulProtocol

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pyllmcancel.server.limits import Limits

# Headers that Ray would obey from any client: to ignore that the client leaves, and to give the request up after a
# time, which would look as if the client had left. A body's "timeout" is ours.
STRIPPED = frozenset({b"x-request-disconnect-disabled", b"x-request-timeout-seconds"})
REQUEST_ID = b"x-request-id"
EVERYWHERE = ("0.0.0.0/0", "::/0")


class Edge:
    """ASGI middleware outside of Ray's own. A request whose client has already left goes no further.

    A cancel does go further, even if its client does not wait for the answer: Ray would end it when the client leaves.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = scope.get("state", {}).get(CONNECTION)
        if is_cancel(scope):
            receive = without_leaving(receive)
        elif connection is not None and connection.has_left():
            # Ray's own work for a request takes longer than all of ours: a burst of clients that leave would delay the
            # others.
            connection.drop()
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        scope["headers"] = [header for header in scope["headers"] if header[0].lower() not in STRIPPED]

        async def send_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_one_id(message.get("headers", ()))
            await send(message)

        await self._app(scope, receive, send_one_id)


def is_cancel(scope: Scope) -> bool:
    return scope["method"] == "DELETE" or (scope["method"] == "POST" and str(scope["path"]).endswith("/cancel"))


def without_leaving(receive: Receive) -> Receive:
    """Return a `receive` that does not report that the client leaves after its request is complete."""
    whole = False

    async def receive_all() -> Message:
        nonlocal whole
        message = await receive()
        if whole and message["type"] == "http.disconnect":
            await asyncio.Event().wait()  # for ever: the task is ended with the answer
        whole = whole or not message.get("more_body", False)
        return message

    return receive_all


def with_one_id(headers: Any) -> list[tuple[bytes, bytes]]:
    """Drop one of two request ids: Ray adds its own to answers that have one, and a client would read both as one
    unknown id.
    """
    found, seen = [], False
    for name, value in headers:
        is_id = name.lower() == REQUEST_ID
        if not (is_id and seen):
            found.append((name, value))
        seen = seen or is_id
    return found


class Mounted:
    """ASGI middleware inside of Ray's: the application sees paths without Ray's route prefix."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "").rstrip("/")
        if scope["type"] == "http" and root and f"{scope['path']}/".startswith(f"{root}/"):
            scope = {**scope, "path": scope["path"][len(root) :] or "/"}
        await self._app(scope, receive, send)


class Distant:
    """A connection, for an application in another thread than the connection's event loop."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop

    def has_left(self) -> bool:
        return self._connection.has_left()

    def answering(self, cancel: Cancel) -> AbstractContextManager[None]:
        return self._connection.answering(cancel)

    def drop(self) -> None:
        with suppress(RuntimeError):  # the loop may have ended before
            self._loop.call_soon_threadsafe(self._connection.drop)


class ReplicaProtocol(WatchfulProtocol):
    """The server's own protocol, in a listener that Ray has made.

    Parameters
    ----------
    on_shutdown
        Called for each connection when the listener ends: Ray reports its end in no other way, and waits for the
        requests.
    """

    def __init__(
        self, limits: Limits, connections: Connections, on_shutdown: Callable[[], object], **given: Any
    ) -> None:
        super().__init__(limits, connections, **given)
        # Ray finds the application by the path. uvicorn has other names for the types of ASGI.
        self.app: Any = PlainHeads(Edge(self.app))
        self._on_shutdown = on_shutdown

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._connection is not None:
            self.app_state = self.app_state | {CONNECTION: Distant(self._connection, self.loop)}

    def shutdown(self) -> None:
        self._on_shutdown()
        super().shutdown()


def watch_clients(limits: Limits, on_shutdown: Callable[[], object]) -> Connections:
    """Make Ray's listener in this process use `ReplicaProtocol`.

    Ray leaves the choice of protocol to uvicorn, whose table is changed here.
    """
    most, _ = limits.connections()
    connections = Connections(most, most, proxies=EVERYWHERE)
    protocol: Any = partial(ReplicaProtocol, limits, connections, on_shutdown)
    uvicorn.config.HTTP_PROTOCOLS["auto"] = protocol
    return connections


def middlewares() -> list[Middleware]:
    """Return the middlewares for Ray's own proxies:
    ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=pyllmcancel.ray.edge:middlewares``.
    """
    from starlette.middleware import Middleware

    return [Middleware(Edge)]
