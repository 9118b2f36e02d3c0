"""The feed of this server and its peers: one sequence of events for readers here. Used in the event loop only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from pyllmcancel.server.fleet.events.relayed import Relayed
from pyllmcancel.server.fleet.events.upstream import Upstream
from pyllmcancel.server.live.facts import Fact
from pyllmcancel.server.live.frames import Audience, Framing
from pyllmcancel.server.live.pace import Pace
from pyllmcancel.server.live.ring import KEPT, Ring
from pyllmcancel.server.live.source import Source
from pyllmcancel.server.live.wording import as_json

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.peer import Peer
    from pyllmcancel.server.live.feed import Feed
    from pyllmcancel.server.live.source import Reader

MAX_BYTES = 32 << 20  # size of peers' events that are remembered
GRACE_SECONDS = 10.0  # peers are still read for this time after the last reader has left, in case it comes back
MANY = 1_000  # facts at once

Item = Fact | Relayed


class Backlog(Ring[Item]):
    """A ring that is bounded in bytes, too."""

    def __init__(self, kept: int = KEPT, most_bytes: int = MAX_BYTES) -> None:
        super().__init__(kept)
        self._most_bytes = most_bytes
        self._n_bytes = 0

    def extend(self, facts: Iterable[Item]) -> None:
        for item in facts:
            self._facts.append(item)
            self._n_bytes += weight(item)
        if len(self._facts) > self._kept or self._n_bytes > self._most_bytes:
            self._cut()

    def _cut(self) -> None:
        """Cut a tenth at a time."""
        least = len(self._facts) - self._kept * 9 // 10
        n_cut = 0
        while n_cut < least or (self._n_bytes > self._most_bytes * 9 // 10 and n_cut < len(self._facts) - 1):
            self._n_bytes -= weight(self._facts[n_cut])
            n_cut += 1
        del self._facts[:n_cut]
        self.first += n_cut

    def skip(self) -> None:
        super().skip()
        self._n_bytes = 0


def weight(item: Item) -> int:
    return item.n_bytes if isinstance(item, Relayed) else 0


class WholeFrames(Framing[Item]):
    """Frames of this server's facts, in its own words, and of its peers' events."""

    def __init__(self, feed: Feed, name: str) -> None:
        super().__init__()
        self._feed = feed
        self._name = name

    def worded(self, item: Item, audience: Audience) -> tuple[str, bytes] | None:
        if isinstance(item, Relayed):
            return self._passed_on(item, audience)
        if audience.replica not in (None, self._name):
            return None
        event = self._feed.frames.wording.event(item, audience.owner, audience.types)
        return None if event is None else (event["type"], as_json({**event, "replica": self._name}))

    @staticmethod
    def _passed_on(item: Relayed, audience: Audience) -> tuple[str, bytes] | None:
        if audience.replica not in (None, item.replica):
            return None
        if audience.types is not None and item.type != "snapshot" and item.type not in audience.types:
            return None
        data = item.seen_by(audience.theirs, counts=audience.owner is None)
        return None if data is None else (item.type, data)


class WholeFeed(Source[Item]):
    """The events of this server's feed and of its peers' feeds.

    Parameters
    ----------
    feed
        This server's own feed. While somebody reads here, this is one of its readers.
    name
        This server's name in lists.
    """

    def __init__(self, feed: Feed, name: str) -> None:
        super().__init__(Backlog(), WholeFrames(feed, name))
        self.name = name
        self._feed = feed
        feed.rings.append(self.ring)
        self._peers: dict[Peer, Upstream | None] = {}  # read while somebody reads here
        self._listening = ExitStack()  # to this server's events
        self._here: Reader | None = None
        self._following: asyncio.Task[None] | None = None
        self._pace = Pace()
        self._waking: asyncio.TimerHandle | None = None
        self._woken_at = float("-inf")
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def ended(self) -> bool:
        return self._feed.ended

    # -- peers --------------------------------------------------------------------------------------------------------

    def came(self, peer: Peer) -> None:
        """Note a peer, which may be there from now on."""
        self._peers[peer] = None if self._here is None else Upstream(peer, self._add_one)

    def left(self, peer: Peer) -> None:
        """Note that a server is no longer a peer."""
        upstream = self._peers.pop(peer, None)
        if upstream is not None:
            upstream.leave()

    def upstreams(self, replica: str | None) -> list[Upstream]:
        """Return the upstreams of all peers, or of the peer of this name."""
        return [one for peer, one in self._peers.items() if one is not None and replica in (None, peer.name)]

    def knows(self, replica: str) -> bool:
        return replica == self.name or any(peer.counts and peer.name == replica for peer in self._peers)

    # -- readers ------------------------------------------------------------------------------------------------------

    @contextmanager
    def reader(self, audience: Audience, owner: str | None, drop: Callable[[], object]) -> Iterator[Reader]:
        with nullcontext() if owner is None else self._feed.seat(owner):
            self._listen()
            self.flush()
            try:
                with self._reading(audience, drop) as reader:
                    yield reader
            finally:
                if not self._readers:
                    self._leaving = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._listen_no_more)

    # -- listening ----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._here is not None:
            return
        # In the engine's own form: each reader's permission is applied when an event is sent.
        self._here = self._listening.enter_context(self._feed.reader(Audience(None), None, self._miss))
        self._following = asyncio.create_task(self._follow_here(), name="read the feed of this server")
        for peer in self._peers:
            self._peers[peer] = Upstream(peer, self._add_one)

    def _listen_no_more(self) -> list[asyncio.Task[None]]:
        """Stop listening; return the tasks that end."""
        self._leaving = None
        self._listening.close()
        self._here = None
        ending = [] if self._following is None else [self._following]
        for task in ending:
            task.cancel()
        self._following = None
        for peer, upstream in self._peers.items():
            if upstream is not None:
                ending.append(upstream.end())
            self._peers[peer] = None
        self.ring.skip()
        return ending

    async def close(self) -> None:
        """Idempotent."""
        for timer in (self._leaving, self._waking):
            if timer is not None:
                timer.cancel()
        self._leaving = self._waking = None
        await asyncio.gather(*self._listen_no_more(), return_exceptions=True)

    async def _follow_here(self) -> None:
        while not self._feed.ended:
            self._take_here()
            await self._feed.change()
        self._take_here()
        self._wake()

    def _take_here(self) -> None:
        here = self._here
        while here is not None and here.place < self._feed.ring.newest:
            facts = self._feed.ring.after(here.place, MANY)
            here.place += len(facts)
            self._add(facts)

    def _miss(self) -> None:
        """Make readers start anew, because events of this server were missed."""
        if self._here is not None:
            self._here.place = self._feed.ring.newest
        self.ring.skip()
        self._drop_late()

    # -- telling ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Take this server's events since the last flush."""
        self._feed.flush()
        self._take_here()

    def _add_one(self, item: Relayed) -> None:
        self._add((item,))

    def _add(self, items: Iterable[Item]) -> None:
        self.ring.extend(items)
        self._drop_late()
        if self._waking is None:
            wait = self._woken_at + self._pace.interval - time.monotonic()
            self._waking = asyncio.get_running_loop().call_later(max(0.0, wait), self._wake)

    def _wake(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._woken_at, began = time.monotonic(), time.thread_time()
        self._tell()
        self._pace.learn(began, asyncio.get_running_loop())  # after the readers' turns
