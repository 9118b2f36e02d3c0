"""Messages between servers over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import httpx

from pyllmcancel.server.fleet.names import ByNames, Names
from pyllmcancel.server.fleet.outbox import Outbox
from pyllmcancel.server.fleet.peer import Peer, Standing
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.discovery import Place, Seek
    from pyllmcancel.server.fleet.identity import Identity
    from pyllmcancel.server.fleet.messages import Message, News, Superseding
    from pyllmcancel.server.fleet.transport import Answer

logger = logging.getLogger("pyllmcancel.fleet")

KEEP_SECONDS = 30.0  # an idle connection is kept shorter than a server keeps it
SEEK_AGAIN = 1.0  # seconds after an error of discovery


class Line:
    """A peer, the news on their way to it, and the task that checks whether it is there."""

    def __init__(self, peer: Peer, heard: Callable[[list[Answer]], None]) -> None:
        self.peer = peer
        self._heard = heard
        self.outbox = Outbox(peer.name, self._send)
        self._looking = asyncio.create_task(peer.keep_looking(), name=f"check {peer.name}")

    async def _send(self, message: Superseding) -> bool:
        answer = await self.peer.ask(message)
        self._heard([answer])
        # Nothing is to be sent again to a server that is not a peer.
        return answer.reply is not None or not self.is_open

    @property
    def is_open(self) -> bool:
        # A peer that is loading may have accepted requests before it is checked again.
        return self.peer.standing in (Standing.UNKNOWN, Standing.LOADING, Standing.READY, Standing.SILENT)

    async def close(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, self.outbox.close(), return_exceptions=True)


class Watcher(Protocol):
    """Called when peers come and go."""

    def came(self, peer: Peer) -> None: ...

    def left(self, peer: Peer) -> None: ...


class HttpTransport:
    """HTTP connections to the peers: one for news to each, and more for questions as needed. Used in the event loop
    only.

    Parameters
    ----------
    seek
        Finds the addresses of the others.
    me
        Returns this server's present identity.
    deadline
        The time limit of an answer, in seconds.
    carrier
        The transport of httpx; by default httpx's own.
    watcher
        Called when peers come and go.
    """

    def __init__(
        self,
        seek: Seek,
        me: Callable[[], Identity],
        *,
        deadline: float = DEADLINE_SECONDS,
        carrier: httpx.AsyncBaseTransport | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self._seek = seek
        self._me = me
        self._deadline = deadline
        self._carrier = carrier
        self._watcher = watcher
        self._lines: dict[Place, Line] = {}
        self._client: httpx.AsyncClient | None = None
        self._heard: Callable[[list[Answer]], None] = lambda _: None
        self._seeking: asyncio.Task[None] | None = None

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        """Idempotent."""
        if self._client is not None:
            return
        self._heard = heard
        # The environment's proxies are not used: peers are given by their own addresses.
        limits = httpx.Limits(keepalive_expiry=KEEP_SECONDS)
        carrier = self._carrier or ByNames(Names(), httpx.AsyncHTTPTransport(trust_env=False, limits=limits))
        self._client = httpx.AsyncClient(timeout=self._deadline, trust_env=False, transport=carrier)
        self._seeking = asyncio.create_task(self._keep_seeking(), name="discover peers")

    async def _keep_seeking(self) -> None:
        while True:
            try:
                async for places in self._seek():
                    await self._keep(places)
                return
            except Exception:
                logger.exception(
                    "the discovery of peers failed, and is tried again"
                )  # and are again: this task must not end
            await asyncio.sleep(SEEK_AGAIN)

    async def _keep(self, wanted: set[Place]) -> None:
        # A peer that is no longer named, but answers, may be draining: requests that it still computes can be
        # cancelled.
        missing = self._lines.keys() - wanted
        gone = [self._lines.pop(one) for one in missing if self._lines[one].peer.standing is not Standing.READY]
        for line in gone:
            if self._watcher is not None:
                self._watcher.left(line.peer)
        self._use(wanted)
        await asyncio.gather(*(line.close() for line in gone))

    def _use(self, wanted: set[Place]) -> None:
        assert self._client is not None
        for place in wanted - self._lines.keys():
            peer = Peer(
                place.address,
                client=self._client,
                key=place.key,
                me=self._me,
                beside=self._beside,
                deadline=self._deadline,
            )
            self._lines[place] = Line(peer, self._heard)
            if self._watcher is not None:
                self._watcher.came(peer)

    def _beside(self, peer: Peer) -> list[Peer]:
        """Return the other peers that are there."""
        others = (line.peer for line in self._lines.values() if line.peer is not peer)
        return [one for one in others if one.standing is Standing.READY]

    async def ask_all(self, message: Message) -> list[Answer]:
        peers = [line.peer for line in self._lines.values()]
        asked = [peer for peer in peers if peer.counts or peer.standing is Standing.LOADING]
        answers = await asyncio.gather(*(peer.ask(message) for peer in asked))
        # A peer that is still loading has no requests.
        return [answer for peer, answer in zip(asked, answers, strict=True) if answer.reply is not None or peer.counts]

    def tell_all(self, news: News) -> None:
        for line in self._lines.values():
            if line.is_open:
                line.outbox.put(news)

    async def close(self) -> None:
        if self._seeking is not None:
            self._seeking.cancel()
            await asyncio.gather(self._seeking, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self._lines.values()))
        self._lines.clear()
        if self._client is not None:
            await self._client.aclose()
