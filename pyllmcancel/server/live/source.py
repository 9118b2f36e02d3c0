"""A ring of facts and its readers. Touched by the event loop only.

A reader is a place in the ring and nothing more, so one that is slow costs nothing: it is dropped when what it would
read next is not remembered any more. (One that takes nothing at all has its connection closed before, by the
connection's own watch.)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyllmcancel.server.live.frames import Audience, Framing
    from pyllmcancel.server.live.ring import Ring

Item = TypeVar("Item")


class Reader:
    """One reader: which fact it has read last, and what drops it."""

    def __init__(self, audience: Audience, place: int, drop: Callable[[], object]) -> None:
        self.audience = audience
        self.place = place
        self.drop = drop


class Source(ABC, Generic[Item]):
    """The source of the events that readers get: of one server, or of several."""

    def __init__(self, ring: Ring[Item], frames: Framing[Item]) -> None:
        self.ring = ring
        self.frames = frames
        self._readers: dict[Reader, None] = {}
        self._change = asyncio.Event()  # of the next time that readers are told

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if what is in the ring was the last."""

    @abstractmethod
    def reader(
        self, audience: Audience, owner: str | None, drop: Callable[[], object]
    ) -> AbstractContextManager[Reader]:
        """Read, inside; begins at what happens from now on.

        `drop` is called if the reader is too slow. It takes a seat of this owner's; the server itself (None) has none.
        ApiError 503 if there is none left.
        """

    @abstractmethod
    def flush(self) -> None:
        """Take what has happened."""

    @property
    def n_readers(self) -> int:
        return len(self._readers)

    def place_after(self, event_id: str) -> int | None:
        """The place of the event of this id; None if it is none of ours."""
        number = self.frames.number_in(event_id)
        return number if number is not None and number <= self.ring.newest else None

    def read(self, reader: Reader) -> bytes:
        """The next events for it, some at a time; empty if there are none for now, even if others have some."""
        chunk, reader.place = self.frames.after(self.ring, reader.place, reader.audience)
        return chunk

    async def change(self) -> None:
        """Wait until there is more to read, or for the end."""
        if not self.ended:
            await self._change.wait()

    @contextmanager
    def _reading(self, audience: Audience, drop: Callable[[], object]) -> Iterator[Reader]:
        """One of the readers, inside."""
        reader = Reader(audience, self.ring.newest, drop)
        self._readers[reader] = None
        try:
            yield reader
        finally:
            del self._readers[reader]

    def _drop_late(self) -> None:
        """Drop the readers whose next fact is not remembered."""
        for reader in [one for one in self._readers if not self.ring.remembers(one.place)]:
            reader.drop()

    def _tell(self) -> None:
        """Have readers read, all at the same time: what they are told is encoded once."""
        self.frames.forget()
        self._change.set()
        self._change = asyncio.Event()
