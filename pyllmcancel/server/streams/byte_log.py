"""The bytes of a stream, as its readers get them."""

from __future__ import annotations

from collections import deque

from pyllmcancel.server.following import Change

# bytes that one read returns at most
READ_AT_ONCE = 1 << 16


class ByteLog:
    """The last bytes that were written, which can be read from any of them on. Used in the event loop only.

    Places are counted in bytes from the first that was ever written.

    Parameters
    ----------
    limit
        The number of bytes to keep. More are dropped in whole pieces, the oldest first, but never the last one.

    Attributes
    ----------
    begin, end
        The places of the first byte that is kept, and after the last one.
    ended
        True if nothing follows.
    changed
        Tells of new bytes, and of the end.
    """

    def __init__(self, limit: int) -> None:
        self.begin = self.end = 0
        self.ended = False
        self.changed = Change()
        self._limit = limit
        self._bytes = bytearray()
        self._ends = deque[int]()  # of the pieces that are kept

    def write(self, piece: bytes) -> None:
        self._bytes += piece
        self.end += len(piece)
        self._ends.append(self.end)
        while self.end - self.begin > self._limit and len(self._ends) > 1:
            after = self._ends.popleft()
            del self._bytes[: after - self.begin]
            self.begin = after
        self.changed.tell()

    def finish(self) -> None:
        self.ended = True
        self.changed.tell()

    def read(self, place: int) -> bytes:
        """Return whole pieces from this place on, a limited number of bytes at once; nothing at the end."""
        assert self.begin <= place <= self.end
        end = self.end
        if end - place > READ_AT_ONCE:
            ends = [one for one in self._ends if one > place]
            end = max((one for one in ends if one <= place + READ_AT_ONCE), default=ends[0])
        return bytes(self._bytes[place - self.begin : end - self.begin])
