"""Messages between servers over HTTP: `--peers`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import httpx

from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.names import ByNames, Names
from pyllmcancel.server.fleet.outbox import Outbox
from pyllmcancel.server.fleet.peer import Peer, Standing
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.addresses import FleetSettings
    from pyllmcancel.server.fleet.identity import Identity
    from pyllmcancel.server.fleet.messages import Message, News, Superseding
    from pyllmcancel.server.fleet.transport import Answer

logger = logging.getLogger("pyllmcancel.fleet")

RESOLVE_EVERY = 5.0  # seconds
KEEP_SECONDS = 30.0  # an idle connection: less than a server does


class Line:
    """A peer, the news on their way to it, and the task that looks whether it is there."""

    def __init__(self, peer: Peer, heard: Callable[[list[Answer]], None]) -> None:
        self.peer = peer
        self._heard = heard
        self.outbox = Outbox(peer.name, self._send)
        self._looking = asyncio.create_task(peer.keep_looking(), name=f"look at {peer.name}")

    async def _send(self, message: Superseding) -> bool:
        answer = await self.peer.ask(message)
        self._heard([answer])
        # To one that is none of us nothing is to be sent again.
        return answer.reply is not None or not self.is_open

    @property
    def is_open(self) -> bool:
        # One that is loading may have accepted something before it is looked at again.
        return self.peer.standing in (Standing.UNKNOWN, Standing.LOADING, Standing.READY, Standing.SILENT)

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, self.outbox.close(), return_exceptions=True)


class Watcher(Protocol):
    """Is told of peers."""

    def came(self, peer: Peer) -> None: ...

    def left(self, peer: Peer) -> None: ...


class HttpTransport:
    """To each peer one connection for news, and more for questions as they come. Belongs to the event loop.

    Parameters
    ----------
    me
        What this server says of itself now.
    deadline
        Seconds for an answer.
    carrier
        httpx's own, by default.
    watcher
        Told of peers that come and go.
    """

    def __init__(
        self,
        settings: FleetSettings,
        me: Callable[[], Identity],
        *,
        deadline: float = DEADLINE_SECONDS,
        carrier: httpx.AsyncBaseTransport | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._settings = settings
        self._me = me
        self._deadline = deadline
        self._carrier = carrier
        self._watcher = watcher
        self._names = Names()
        self._lines: dict[Address, Line] = {}
        self._client: httpx.AsyncClient | None = None
        self._heard: Callable[[list[Answer]], None] = lambda _: None
        self._resolving: asyncio.Task[None] | None = None

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        """Idempotent."""
        if self._client is not None:
            return
        self._heard = heard
        # No proxy of the environment: peers are told by their own addresses.
        limits = httpx.Limits(keepalive_expiry=KEEP_SECONDS)
        carrier = self._carrier or ByNames(self._names, httpx.AsyncHTTPTransport(trust_env=False, limits=limits))
        self._client = httpx.AsyncClient(timeout=self._deadline, trust_env=False, transport=carrier)
        named = {one for one in self._settings.peers if one.scheme == "dns"}
        self._use({one for one in self._settings.peers if one not in named})
        if named:
            self._resolving = asyncio.create_task(self._keep_resolving(named), name="look for peers")

    async def _keep_resolving(self, named: set[Address]) -> None:
        fixed = set(self._lines)
        found: dict[Address, set[Address]] = {one: set() for one in named}
        told: dict[Address, str] = {}
        while True:
            for one in named:
                try:
                    async with asyncio.timeout(self._deadline):
                        hosts = await self._names.addresses(one.host)
                    found[one] = {Address("http", host, one.port) for host in hosts}
                    told.pop(one, None)
                except (OSError, UnicodeError) as error:
                    # Those that are known stay: a name server that is away takes nobody along.
                    why = str(error) or f"no answer in {self._deadline:g} s"
                    if told.get(one) != why:
                        told[one] = why
                        logger.warning("the name of %s cannot be resolved: %s", one.url, why)
            await self._keep(fixed.union(*found.values()))
            await asyncio.sleep(RESOLVE_EVERY)

    async def _keep(self, wanted: set[Address]) -> None:
        gone = [self._lines.pop(one) for one in self._lines.keys() - wanted]
        for line in gone:
            if self._watcher is not None:
                self._watcher.left(line.peer)
        self._use(wanted)
        await asyncio.gather(*(line.close() for line in gone))

    def _use(self, wanted: set[Address]) -> None:
        assert self._client is not None
        for address in wanted - self._lines.keys():
            peer = Peer(
                address,
                client=self._client,
                key=self._settings.key,
                me=self._me,
                beside=self._beside,
                deadline=self._deadline,
            )
            self._lines[address] = Line(peer, self._heard)
            if self._watcher is not None:
                self._watcher.came(peer)

    def _beside(self, peer: Peer) -> list[Peer]:
        """The others that are there."""
        others = (line.peer for line in self._lines.values() if line.peer is not peer)
        return [one for one in others if one.standing is Standing.READY]

    async def ask_all(self, message: Message) -> list[Answer]:
        peers = [line.peer for line in self._lines.values() if line.peer.counts]
        return list(await asyncio.gather(*(peer.ask(message) for peer in peers)))

    def tell_all(self, news: News) -> None:
        for line in self._lines.values():
            if line.is_open:
                line.outbox.put(news)

    async def close(self) -> None:
        if self._resolving is not None:
            self._resolving.cancel()
            await asyncio.gather(self._resolving, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self._lines.values()))
        self._lines.clear()
        if self._client is not None:
            await self._client.aclose()
