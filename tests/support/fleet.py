"""Replicas in one process: each a whole server over a fake engine, and messages that a test delivers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pyllmcancel.server.fleet.fleet import Fleet
from pyllmcancel.server.fleet.messages import Message, News, Superseding
from pyllmcancel.server.fleet.transport import Answer
from tests.support.http_asgi import LIMIT
from tests.support.http_world import World, open_world


class Net:
    """Carries questions at once, and news when a test says so. `asked` are all questions, by who asked.

    `silent` replicas do not answer, and those `left_out` are not asked.
    """

    def __init__(self) -> None:
        self.fleets: dict[str, Fleet] = {}
        self.heard: dict[str, Callable[[list[Answer]], None]] = {}
        self.news: asyncio.Queue[tuple[str, News]] = asyncio.Queue()
        self.asked: list[tuple[str, Message]] = []
        self.silent: set[str] = set()
        self.left_out: set[str] = set()

    async def send(self, to: str, message: Message) -> Answer:
        if to in self.silent:
            return Answer(to, None, "does not answer")
        if to in self.left_out:
            return Answer(to, None, "is of another version", left_out=True)
        said = json.loads(json.dumps(message.model_dump(mode="json")))
        return Answer(to, json.loads(json.dumps(await self.fleets[to].receive(said))))

    def others(self, name: str) -> Iterator[str]:
        return (other for other in self.fleets if other != name)

    async def deliver(self, n: int = 1) -> None:
        """So many news, which may have to come first, and the answers to them."""
        async with asyncio.timeout(LIMIT):
            for _ in range(n):
                sender, news = await self.news.get()
                for other in self.others(sender):
                    self.heard[sender]([await self.send(other, Superseding(news=[news]))])


class Hop:
    """The transport of one replica."""

    def __init__(self, net: Net, name: str) -> None:
        self._net = net
        self._name = name

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        self._net.heard[self._name] = heard

    async def ask_all(self, message: Message) -> list[Answer]:
        self._net.asked.append((self._name, message))
        return [await self._net.send(other, message) for other in self._net.others(self._name)]

    def tell_all(self, news: News) -> None:
        self._net.news.put_nowait((self._name, news))

    async def close(self) -> None: ...


@asynccontextmanager
async def open_fleet(*names: str, **options: Any) -> AsyncIterator[tuple[Net, list[World]]]:
    """Replicas of these names; `options` are those of each world."""
    net = Net()
    async with AsyncExitStack() as stack:
        worlds = [await stack.enter_async_context(open_world(**options)) for _ in names]
        for name, world in zip(names, worlds, strict=True):
            state = world.app.state.server
            state.fleet = net.fleets[name] = Fleet(state, Hop(net, name), name)
            state.fleet.start()
        yield net, worlds
