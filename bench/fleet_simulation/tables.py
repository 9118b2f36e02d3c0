"""A stick table of HAProxy 2.6: what it knows of names, how long, and what it forgets when it is full."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

NOWHERE = -1


class Entry:
    """The entry of a name.

    Attributes
    ----------
    at
        The replica, as an index; `NOWHERE`: none has been noted.
    live
        Requests of the process that tracks it. An entry with one is neither expired nor thrown out.
    moves
        How often the name has moved.
    """

    __slots__ = ("at", "expires", "live", "moves", "name")

    def __init__(self, name: str, at: int = NOWHERE) -> None:
        self.name = name
        self.at = at
        self.live = 0
        self.moves = 0
        self.expires = 0.0


class StickTable:
    """`size` entries, each for `expire` seconds after its last touch.

    A touch does not move an entry in the queue in which those that expire first come first: a look at the queue does.
    When the table is full, one look throws out up to `batch` entries, and sees at most twice as many: if all of these
    are live, or have been touched since they were queued, there is no room, and the new name is not noted.
    """

    def __init__(self, size: int, expire: float) -> None:
        self.entries: dict[str, Entry] = {}
        self.evicted: set[str] = set()  # to say why a name has moved
        self.refused = 0
        self._size = size
        self._expire = expire
        self._batch = (size >> 8) + 1
        self._queue: list[tuple[float, int, Entry]] = []
        self._turn = count()
        self._jam = frozenset[Entry]()  # all that a look saw when it saw live ones only: it would see them again

    def at(self, name: str | None) -> int:
        entry = None if name is None else self.entries.get(name)
        return NOWHERE if entry is None else entry.at

    def touch(self, entry: Entry, now: float) -> None:
        entry.expires = now + self._expire
        if entry in self._jam:
            self._jam = frozenset()

    def enter(self, name: str, now: float) -> Entry | None:
        """The entry of a name, a new one if there is none; None: there is no room."""
        entry = self.entries.get(name)
        if entry is not None:
            entry.expires = now + self._expire
            return entry
        if len(self.entries) >= self._size and not self._make_room():
            self.refused += 1
            return None
        entry = self.entries[name] = Entry(name)
        entry.expires = now + self._expire
        heappush(self._queue, (entry.expires, next(self._turn), entry))
        return entry

    def _make_room(self) -> bool:
        if self._jam:
            return False
        before, live = len(self.entries), []
        for _ in range(2 * self._batch):
            if not self._queue or before - len(self.entries) == self._batch:
                break
            queued = heappop(self._queue)
            entry = queued[2]
            if entry.live:
                live.append(queued)
            elif entry.expires != queued[0]:
                heappush(self._queue, (entry.expires, next(self._turn), entry))
            else:
                self.evicted.add(entry.name)
                del self.entries[entry.name]
        for queued in live:
            heappush(self._queue, queued)
        if len(live) == 2 * self._batch:
            self._jam = frozenset(entry for _, _, entry in live)
        return len(self.entries) < before

    def expire(self, now: float) -> None:
        """Forget what nobody has asked for in so long."""
        live = []
        while self._queue and self._queue[0][0] <= now:
            queued = heappop(self._queue)
            entry = queued[2]
            if entry.live:
                live.append(queued)
            elif entry.expires > now:
                heappush(self._queue, (entry.expires, next(self._turn), entry))
            else:
                del self.entries[entry.name]
        for queued in live:
            heappush(self._queue, queued)

    def taught(self, now: float) -> StickTable:
        """Return the table of another process after it has received everything: the notes, and no live requests."""
        other = StickTable(self._size, self._expire)
        other.evicted |= self.evicted
        for _, _, entry in sorted(self._queue):
            new = other.enter(entry.name, now)
            if new is not None:
                new.at, new.moves = entry.at, entry.moves
        return other
