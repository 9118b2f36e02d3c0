"""The events of an answer as bytes, which one task writes and any number of readers follow."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque

# bytes that one read returns at most
READ_AT_ONCE = 1 << 16


class ByteLog:
    """The last bytes that were written, which can be read from any of them on. Used in the event loop only.

    Places are counted in bytes from the first that was ever written. If there are more than `limit`, whole pieces are
    dropped, the oldest first, but never the last one.
    """

    def __init__(self, limit: float) -> None:
        self.begin = self.end = 0  # the places of the first byte that is kept, and after the last one
        self.ended = False  # True if nothing follows
        self._changed = asyncio.Event()  # replaced at each change, so that every waiter wakes up once
        self._limit = limit
        self._bytes = bytearray()
        self._ends = deque[int]()  # of the pieces that are kept

    @property
    def content(self) -> bytes:
        """All bytes that are kept."""
        return bytes(self._bytes)

    def write(self, piece: bytes) -> None:
        self._bytes += piece
        self.end += len(piece)
        self._ends.append(self.end)
        while self.end - self.begin > self._limit and len(self._ends) > 1:
            after = self._ends.popleft()
            del self._bytes[: after - self.begin]
            self.begin = after
        self._wake()

    def finish(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def longer_than(self, place: float) -> bool:
        """Wait until there are bytes after this place, and return True; False if there never will be."""
        while self.end <= place and not self.ended:
            await self._changed.wait()
        return self.end > place

    def read(self, place: int) -> bytes:
        """Return whole pieces from this place on, a limited number of bytes at once; nothing at the end."""
        assert self.begin <= place <= self.end
        if place == self.end:
            return b""
        last = max(bisect_right(self._ends, place), bisect_right(self._ends, place + READ_AT_ONCE) - 1)
        return bytes(self._bytes[place - self.begin : self._ends[last] - self.begin])
