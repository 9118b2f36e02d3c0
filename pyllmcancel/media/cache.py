"""The cache of pictures: what was prepared or encoded of each, by its content. Any thread may use it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.shares import Remembered, largest_first

if TYPE_CHECKING:
    from pyllmcancel._native import MediaChunk
    from pyllmcancel.media.values import MediaKind

MOST_REMEMBERED = 4096  # pictures whose token ids are kept when they themselves are not


class MediaKey(NamedTuple):
    """A picture of an owner."""

    owner: str
    kind: MediaKind
    digest: bytes


Parts = tuple["list[int] | MediaChunk", ...]


def chunks_of(parts: Parts) -> list[MediaChunk]:
    """Return the runs of rows among what stands for a picture."""
    return [part for part in parts if not isinstance(part, list)]


class MediaCache:
    """At most `limit` bytes; of the owner that has the most, what was used least recently is dropped first.

    A picture belongs to an owner: another owner that sends the same one learns nothing by the time that it takes. The
    token ids of a picture that is dropped are kept for a while, so that prefixes that have it are found when it comes
    again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._parts: dict[MediaKey, Parts] = {}  # least recently used first
        self._first_tokens: Remembered[tuple[MediaKind, bytes], int] = Remembered(MOST_REMEMBERED)

    def find(self, key: MediaKey) -> Parts | None:
        """Return what is kept of a picture, which is the most recently used one then."""
        with self._lock:
            parts = self._parts.pop(key, None)
            if parts is not None:
                self._parts[key] = parts
            return parts

    def first_token(self, key: MediaKey) -> int | None:
        """Return the first token id that the picture had before, if that is known."""
        with self._lock:
            return self._first_tokens.get(key.owner, (key.kind, key.digest))

    def put(self, key: MediaKey, parts: Parts) -> Parts:
        """Keep a picture, unless another thread has done so meanwhile; return what is kept."""
        with self._lock:
            parts = self._parts.pop(key, parts)
            self._parts[key] = parts
            chunks = chunks_of(parts)
            if chunks:
                self._first_tokens.put(key.owner, (key.kind, key.digest), chunks[0].first_token)
            self._trim()
            return parts

    def _trim(self) -> None:
        sizes = {key: size_of(parts) for key, parts in self._parts.items()}
        total = sum(sizes.values())
        for key in largest_first(list(self._parts), lambda one: one.owner, sizes.__getitem__):
            if total <= self._limit:
                break
            total -= sizes[key]
            del self._parts[key]


def size_of(parts: Parts) -> int:
    return sum(chunk.n_bytes for chunk in chunks_of(parts))
