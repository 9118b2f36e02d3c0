"""The changes of a request on its way through Ray, and the listener that Ray makes; without Ray."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
import uvicorn.config
from starlette.types import Receive, Scope, Send

from pyllmcancel.ray.edge import Edge, Mounted, middlewares, watch_clients
from pyllmcancel.server.http.connection import CONNECTION, connection_of
from pyllmcancel.server.limits import Limits

pytestmark = pytest.mark.anyio
LIMIT = 60.0


class Seen:
    """An ASGI application that keeps what it was given, and answers."""

    def __init__(self, *headers: tuple[bytes, bytes]) -> None:
        self.scope: Scope = {}
        self._headers = list(headers)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.scope = scope
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})


async def passed(layer: Any, app: Seen, **scope: Any) -> tuple[Scope, list[tuple[bytes, bytes]]]:
    """The scope that `app` sees, and the headers that a client does."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody asks")

    await layer(app)({"type": "http", "method": "GET", "path": "/", "headers": [], **scope}, receive, send)
    return app.scope, sent[0]["headers"]


async def test_a_client_cannot_switch_disconnects_off() -> None:
    given = [(b"x-request-disconnect-disabled", b"?1"), (b"x-request-timeout-seconds", b"1"), (b"x-session-id", b"s")]
    scope, _ = await passed(Edge, Seen(), headers=given)
    assert scope["headers"] == [(b"x-session-id", b"s")]


@pytest.mark.parametrize("left", [False, True])
async def test_what_comes_from_a_client_that_has_left_goes_no_further(left: bool) -> None:
    done: list[str] = []

    class Client:
        def has_left(self) -> bool:
            return left

        def drop(self) -> None:
            done.append("dropped")

    async def receive() -> Any:
        done.append("received")
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        done.append("sent")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "state": {CONNECTION: Client()}}
    await Edge(Seen())(scope, receive, send)
    assert done == (["dropped", "received"] if left else ["sent"])


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/requests/r/cancel"), ("POST", "/v1/requests/cancel"), ("DELETE", "/v1/requests/r")],
)
async def test_a_cancel_is_acted_on_though_its_client_has_left(method: str, path: str) -> None:
    class Client:
        def has_left(self) -> bool:
            return True

    messages = iter(({"type": "http.request", "body": b"{}", "more_body": False}, {"type": "http.disconnect"}))
    seen: list[Any] = []

    async def receive() -> Any:
        return next(messages)

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        seen.append(await receive())
        with suppress(TimeoutError):  # as Ray does: it would end the cancel for a client that has left
            async with asyncio.timeout(0.01):
                seen.append(await receive())
        seen.append("acted")

    async def send(_message: Any) -> None: ...

    scope = {"type": "http", "method": method, "path": path, "headers": [], "state": {CONNECTION: Client()}}
    await Edge(app)(scope, receive, send)
    assert seen == [{"type": "http.request", "body": b"{}", "more_body": False}, "acted"]


async def test_a_cancel_whose_body_does_not_come_is_none() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        assert (await receive())["type"] == "http.disconnect"

    async def send(_message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/v1/requests/cancel", "headers": []}
    await Edge(app)(scope, receive, send)


async def test_an_answer_has_its_id_once() -> None:
    app = Seen((b"x-request-id", b"mine"), (b"vary", b"a"), (b"vary", b"b"), (b"X-Request-ID", b"mine"))
    _, headers = await passed(Edge, app)
    assert headers == [(b"x-request-id", b"mine"), (b"vary", b"a"), (b"vary", b"b")]


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [
        ("", "/v1/models", "/v1/models"),
        ("/coder", "/coder/v1/models", "/v1/models"),
        ("/coder", "/coder", "/"),
        ("/coder", "/coders/v1", "/coders/v1"),
        ("/", "/v1/models", "/v1/models"),
    ],
)
async def test_paths_are_those_of_an_application_that_is_alone(root: str, path: str, seen: str) -> None:
    scope, _ = await passed(Mounted, Seen(), root_path=root, path=path)
    assert scope["path"] == seen


def test_rays_own_proxy_gets_the_same_layer() -> None:
    assert [one.cls for one in middlewares()] == [Edge]


async def test_a_listener_that_ray_makes_sees_its_clients_leave_and_tells_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ray makes it: a `uvicorn.Config` that does not say which protocol it wants."""
    monkeypatch.setitem(uvicorn.config.HTTP_PROTOCOLS, "auto", uvicorn.config.HTTP_PROTOCOLS["auto"])
    told = asyncio.Event()
    arrived = asyncio.Event()
    app = Seen()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        arrived.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    watch_clients(Limits(), told.set)
    server = uvicorn.Server(uvicorn.Config(application, ws="none", lifespan="off", log_config=None))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve([listener]))
    client = socket.create_connection(listener.getsockname())
    client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Request-Disconnect-Disabled: ?1\r\n\r\n")
    await asyncio.wait_for(arrived.wait(), LIMIT)
    assert [name for name, _ in app.scope["headers"]] == [b"host"]
    connection = connection_of(app.scope)
    assert connection is not None
    assert not connection.has_left()
    server.should_exit = True
    await asyncio.wait_for(told.wait(), LIMIT)
    client.close()
    assert connection.has_left()  # before the event loop has heard of it
    await asyncio.wait_for(serving, LIMIT)
    connection.drop()  # it is no more: nothing happens
