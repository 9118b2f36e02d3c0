"""The room for what was prepared of pictures: all of it that live prompts have, the waiting ones' included."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import QueueFullError
from pyllmcancel.shares import Owners, Shares

if TYPE_CHECKING:
    from pyllmcancel._native import MediaChunk


class Key(NamedTuple):
    """A chunk of an owner. Its `id` is the object's: no other object has it while one is held."""

    owner: str
    id: int


class Held:
    """Counts a chunk for as long as this object lives, that is, until its prompt is dropped."""

    __slots__ = ("_chunk", "_key", "_returned")

    def __init__(self, chunk: MediaChunk, key: Key, returned: deque[Key]) -> None:
        self._chunk = chunk
        self._key = key
        self._returned = returned

    def __del__(self) -> None:
        # The garbage collector may call this anywhere, even in a thread that has the room's lock.
        self._returned.append(self._key)


class MediaRoom:
    """Limits the bytes of all owners' prompts together, and an owner's share of them if there are several. Any thread
    may use it.
    """

    def __init__(self, limit: int, owners: Owners) -> None:
        self._limit = limit
        self._owners = owners
        self._lock = threading.Lock()
        self._returned = deque[Key]()
        # The next two are guarded by the lock.
        self._shares = Shares(limit, owners)
        self._held: dict[Key, list[int]] = {}  # the number of prompts that have a chunk, and its bytes

    def most(self) -> int:
        """Return the bytes of a prompt for which there may ever be room."""
        return self._limit // 2 if self._owners.several else self._limit

    def hold(self, owner: str, chunk: MediaChunk) -> Held:
        """Count a chunk, once for all prompts that have it; QueueFullError if there is no room at present."""
        key = Key(owner, id(chunk))
        with self._lock:
            self._take_back()
            known = self._held.get(key)
            if known is None:
                n_bytes = chunk.n_bytes
                if not self._shares.take(owner, n_bytes):
                    message = (
                        f"the pictures and sounds of requests take {self._limit >> 20:,} MiB, or their owner's share"
                    )
                    raise QueueFullError(f"{message}; try again later")
                known = self._held[key] = [0, n_bytes]
            known[0] += 1
        return Held(chunk, key, self._returned)

    def _take_back(self) -> None:
        while self._returned:
            key = self._returned.popleft()
            known = self._held[key]
            known[0] -= 1
            if known[0] == 0:
                self._shares.give_back(key.owner, known[1])
                del self._held[key]
