"""Peers on the same machine: servers of different models, each on a Unix socket in one folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.discovery import Place
from pyllmcancel.server.http.listening import UNIX_SOCKET

LOOK_EVERY = 0.1  # seconds


class SocketsIn:
    """A `Seek`: a server is there as soon as it listens, before it has loaded its model."""

    def __init__(self, folder: str, key: str | None) -> None:
        self._folder = Path(folder)
        self._key = key

    async def __call__(self) -> AsyncIterator[set[Place]]:
        while True:
            names = [one.name for one in self._folder.iterdir() if one.name.endswith(UNIX_SOCKET)]
            # Not only when they change: a peer that has ended is forgotten after it has not answered.
            yield {Place(Address("http", name, 80), self._key) for name in names}
            await asyncio.sleep(LOOK_EVERY)


class ToSockets(httpx.AsyncBaseTransport):
    """Connects to the socket that has the host's name."""

    def __init__(self, folder: str, limits: httpx.Limits) -> None:
        self._folder = Path(folder)
        self._limits = limits
        self._carriers: dict[str, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.host
        if name not in self._carriers:
            path = str(self._folder / name)
            self._carriers[name] = httpx.AsyncHTTPTransport(uds=path, trust_env=False, limits=self._limits)
        return await self._carriers[name].handle_async_request(request)

    async def aclose(self) -> None:
        await asyncio.gather(*(carrier.aclose() for carrier in self._carriers.values()))
