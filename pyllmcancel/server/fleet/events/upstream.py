"""One peer's feed, over one connection, which is opened again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from pyllmcancel.server.fleet.events.relayed import Relayed, relayed, replica_event
from pyllmcancel.server.fleet.peer import Peer, Standing
from pyllmcancel.server.fleet.peer_client import FAILURES, NoAnswer
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS
from pyllmcancel.sse import EventDecoder

logger = logging.getLogger("pyllmcancel.fleet")

LONGEST_EVENT = 16 << 20  # bytes; the largest is a snapshot
LONGEST_ID = 64  # characters
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds before the next try
GOOD_SECONDS = 5.0  # of a valid feed; after that the next try is soon again
ANEW_EVERY = 5.0  # seconds: all readers lose the peer for a moment


class Upstream:
    """The feed of one peer, read until it is closed. Used in the event loop only.

    Parameters
    ----------
    add
        Takes the peer's events, and the state of its feed.
    """

    def __init__(self, peer: Peer, add: Callable[[Relayed], None]) -> None:
        self.peer = peer
        self.state: Relayed | None = None  # the state of the connection, as it was reported last
        self._told = asyncio.Event()  # set when the state was reported, or need not be
        self.is_live = False
        self._add = add
        self._name = peer.name
        self._last_id: str | None = None
        self._pause = FIRST_PAUSE
        self._anew = asyncio.Event()
        self._anew_at = float("-inf")  # when it last started anew; on the event loop's clock
        self._task = asyncio.create_task(self._run(), name=f"read the feed of {peer.name}")

    def begin_anew(self) -> None:
        """Make the peer send a snapshot, soon or when it is there again: a reader could not get one otherwise."""
        if self.is_live or self._last_id is not None:  # otherwise it starts with a snapshot anyway
            self._anew.set()

    async def known(self) -> None:
        """Wait until the state of the feed is known; not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self._told.wait()

    def end(self) -> asyncio.Task[None]:
        """Stop reading; return the task that ends. Idempotent."""
        self.is_live = False
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        await self.peer.met.wait()
        while True:
            if self.peer.standing is not Standing.READY:
                self._lose(self.peer.why)
                await self.peer.until(there=True)
            if self._anew.is_set():
                self._anew.clear()
                self._anew_at = asyncio.get_running_loop().time()
                self._last_id = None
            try:
                why = await self._read()
            except Exception:
                logger.exception("the feed of %s cannot be read", self.peer.name)
                why = "its feed cannot be read"  # and is tried again, because nobody else would
            self._lose(why)
            self.peer.look_now()  # it may be gone
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    async def _read(self) -> str:
        """Read until the feed ends, or the peer is not there; return why."""
        reading = asyncio.create_task(self._take())
        ends = [reading, *(asyncio.create_task(one) for one in (self.peer.until(there=False), self._until_anew()))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return "is read anew" if self.peer.standing is Standing.READY else self.peer.why
            reading.result()
            return "closed its feed"
        except ValueError:
            self._last_id = None
            return "sends an invalid feed"
        except (*FAILURES, NoAnswer) as error:
            return self.peer.reason_of(error)
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _until_anew(self) -> None:
        await self._anew.wait()
        await asyncio.sleep(self._anew_at + ANEW_EVERY - asyncio.get_running_loop().time())

    async def _take(self) -> None:
        """Take an event; ValueError if it is invalid."""
        async with self.peer.follow(self._last_id) as pieces:
            self._be_live(self.peer.name)
            clock = asyncio.get_running_loop().time
            good_from = clock() + GOOD_SECONDS
            decoder = EventDecoder(LONGEST_EVENT)
            async for piece in pieces:
                for event in decoder.feed(piece):
                    self._add(relayed(self._name, event.data.encode()))
                    self._last_id = event.id if 0 < len(event.id) <= LONGEST_ID else None
                    if clock() >= good_from:
                        self._pause = FIRST_PAUSE

    def _be_live(self, name: str) -> None:
        if name != self._name:
            self._say("gone")  # it has another name since
        self._name = name
        self.is_live = True
        self._say("live")

    def _lose(self, why: str) -> None:
        self.is_live = False
        self._say("lost" if self.peer.counts else "gone", why)

    def _say(self, state: Literal["live", "lost", "gone"], why: str | None = None) -> None:
        self._told.set()
        told = replica_event(self._name, state, why)
        if self.state is None and state == "gone":
            return
        self.state = None if state == "gone" else told
        self._add(told)

    def leave(self) -> None:
        """Note that the server is no longer a peer."""
        self.end()
        self._say("gone")
