"""Servers in one process that are each other's peers over HTTP, of which only the sockets are left out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from pyllmcancel.server.fleet.addresses import Address, FleetSettings
from pyllmcancel.server.fleet.discovery import Named
from pyllmcancel.server.fleet.endpoint import PeerEndpoint
from pyllmcancel.server.fleet.events.feed import WholeFeed
from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.http_transport import HttpTransport
from pyllmcancel.server.fleet.membership import Me
from pyllmcancel.server.http.request_context import RequestContext
from tests.support.http_asgi import LIMIT, http_scope
from tests.support.http_world import World, open_world

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message


class Call(httpx.AsyncByteStream):
    """One exchange, whose answer is streamed."""

    def __init__(self, app: ASGIApp, request: httpx.Request, body: bytes) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = asyncio.Event()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        scope = http_scope(request.method, request.url.path, dict(request.headers), ("127.0.0.1", 1))
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._send))
        self.task.add_done_callback(lambda _: self.cut())

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
            self.begun.set()
        else:
            self._pieces.put_nowait(message.get("body", b""))

    def cut(self) -> None:
        self.begun.set()
        self._pieces.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def aclose(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})
        await asyncio.gather(self.task, return_exceptions=True)


class Wires(httpx.AsyncBaseTransport):
    """Carries to `apps`, by their hosts. `feeds` are the connections over which feeds are read, by both ends."""

    def __init__(self) -> None:
        self.apps: dict[str, ASGIApp] = {}
        self.feeds: dict[str, list[Call]] = {}
        self.changed = asyncio.Condition()
        self.n_followed = Counter[str]()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        if host not in self.apps:
            raise httpx.ConnectError("nobody is there")
        body = await request.aread()
        call = Call(self.apps[host], request, body)
        if b'"kind":"follow"' in body:
            self.n_followed[host] += 1
            self.feeds.setdefault(host, []).append(call)
        await call.begun.wait()
        return httpx.Response(call.status, headers=call.headers, stream=call)

    def reading(self, host: str) -> int:
        """How many connections read the feed of this host now."""
        return sum(not call.task.done() for call in self.feeds.get(host, ()))

    def cut(self, host: str) -> None:
        """Break the connections to it, and let none through."""
        del self.apps[host]
        for call in self.feeds.pop(host, ()):
            call.cut()


def join(wires: Wires, world: World, name: str, peers: tuple[str, ...]) -> HttpTransport:
    """Make the server of `world` one of the fleet."""
    state = world.app.state.server
    settings = FleetSettings(peers=tuple(Address("http", peer, 1) for peer in peers), name=name)
    me, feed = Me(state, name), WholeFeed(state.feed, name)
    transport = HttpTransport(Named(settings, LIMIT), me, deadline=LIMIT, carrier=wires, watcher=feed)
    state.fleet = Fleet(state, transport, name, feed)
    wires.apps[name] = RequestContext(PeerEndpoint(world.app, state.fleet, me, None))
    state.fleet.start()
    return transport


@asynccontextmanager
async def open_peers(*names: str, **options: Any) -> AsyncIterator[tuple[Wires, list[World]]]:
    """Servers of these names, which have met; `options` are those of each world."""
    wires = Wires()
    async with AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(open_world(**options)) for _ in names]
        transports = [join(wires, world, name, names) for name, world in zip(names, worlds, strict=True)]
        await asyncio.sleep(0)  # now they know where to look
        async with asyncio.timeout(LIMIT):
            for transport in transports:
                for line in transport._lines.values():
                    while line.peer.address.host != line.peer.name or not line.peer.met.is_set():
                        line.peer.look_now()
                        await asyncio.sleep(0)
        yield wires, worlds
