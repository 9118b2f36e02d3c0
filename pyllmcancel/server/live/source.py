"""A ring of facts and its readers. Used in the event loop only.

A reader is only a place in the ring, so a slow reader costs nothing. It is dropped when the ring no longer has the fact
that it would read next. (The connection of a reader that takes nothing at all is closed earlier, by the connection's
own watch.)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyllmcancel.server.live.facts import Fact
    from pyllmcancel.server.live.frames import Audience, Frames
    from pyllmcancel.server.live.ring import Ring


class Reader:
    """One reader: the last fact that it has read, and the function that drops it."""

    def __init__(self, audience: Audience, place: int, drop: Callable[[], object]) -> None:
        self.audience = audience
        self.place = place
        self.drop = drop


class Source(ABC):
    """The source of readers' events."""

    def __init__(self, ring: Ring[Fact], frames: Frames) -> None:
        self.ring = ring
        self.frames = frames
        self._readers: dict[Reader, None] = {}
        self._change = asyncio.Event()  # set at the next change

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if no event follows those in the ring."""

    @abstractmethod
    def reader(self, audience: Audience, owner: str, drop: Callable[[], object]) -> AbstractContextManager[Reader]:
        """Read inside the block, beginning with the events from now on.

        `drop` is called if the reader is too slow. A reader takes one of the owner's seats;
        ApiError 503 if there is none left.
        """

    @abstractmethod
    def flush(self) -> None:
        """Publish the events since the last flush."""

    @property
    def n_readers(self) -> int:
        return len(self._readers)

    def place_after(self, event_id: str) -> int | None:
        """Return the place of the event of this id; None if the id is not ours."""
        number = self.frames.number_in(event_id)
        return number if number is not None and number <= self.ring.newest else None

    def read(self, reader: Reader) -> bytes:
        """Return the next events for the reader, some at a time; empty if there are none for now."""
        chunk, reader.place = self.frames.after(self.ring, reader.place, reader.audience)
        return chunk

    async def change(self) -> None:
        """Wait until there are more events, or for the end."""
        if not self.ended:
            await self._change.wait()

    @contextmanager
    def _reading(self, audience: Audience, drop: Callable[[], object]) -> Iterator[Reader]:
        """Register a reader inside the block."""
        reader = Reader(audience, self.ring.newest, drop)
        self._readers[reader] = None
        try:
            yield reader
        finally:
            del self._readers[reader]

    def _drop_late(self) -> None:
        """Drop the readers whose next fact is no longer remembered."""
        for reader in [one for one in self._readers if not self.ring.remembers(one.place)]:
            reader.drop()

    def _tell(self) -> None:
        """Wake all readers at the same time, so that their events are encoded once."""
        self.frames.forget()
        self._change.set()
        self._change = asyncio.Event()
