"""Which replica a name hashes to: XXH32 of ``DIGEST/REPLICA``, as HAProxy's converter has it, many at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pyllmcancel.cluster.places import Replica

Words = NDArray[np.uint32]

P1, P2, P3, P4, P5 = (np.uint32(p) for p in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1))
STRIPE = 16
SHIFT = 31  # the configuration's mul(2147483648): the hash above, the id below
BATCH = 1_000  # names at a time, so that what is computed stays in the processor's caches


def digest(text: str, owner: str = "all") -> str:
    """A name as it stands in the tables."""
    return hashlib.sha1(f"{text}/{owner}".encode(), usedforsecurity=False).hexdigest().upper()


def rotated(x: Words, bits: int) -> Words:
    turned: Words = (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))
    return turned


def xxh32(columns: Sequence[NDArray[np.uint8]]) -> Words:
    """XXH32, seed 0, of texts of one length.

    Parameters
    ----------
    columns
        One array for each byte of the texts. They are broadcast: what has one row is computed once for all rows.
    """
    n = len(columns)
    byte = [column.astype(np.uint32) for column in columns]

    def word(at: int) -> Words:
        high: Words = byte[at + 2] << np.uint32(16) | byte[at + 3] << np.uint32(24)
        high |= byte[at] | byte[at + 1] << np.uint32(8)
        return high

    with np.errstate(over="ignore"):
        h: Words
        if n < STRIPE:
            h = np.asarray(P5)
        else:
            lanes = [np.asarray(one, np.uint32) for one in (P1 + P2, P2, np.uint32(0), np.uint32(0) - P1)]
            for stripe in range(0, n - STRIPE + 1, STRIPE):
                lanes = [rotated(one + word(stripe + 4 * i) * P2, 13) * P1 for i, one in enumerate(lanes)]
            h = rotated(lanes[0], 1) + rotated(lanes[1], 7) + rotated(lanes[2], 12) + rotated(lanes[3], 18)
        h = h + np.uint32(n)
        for at in range(n // STRIPE * STRIPE, n - 3, 4):
            h = rotated(h + word(at) * P3, 17) * P4
        for one in byte[n // 4 * 4 :]:
            h = rotated(h + one * P5, 11) * P1
        h = (h ^ (h >> np.uint32(15))) * P2
        h = (h ^ (h >> np.uint32(13))) * P3
        h ^= h >> np.uint32(16)
    return h


def columns_of(texts: Sequence[str], axis: int) -> list[NDArray[np.uint8]]:
    """The bytes of texts of one length: a column each, along `axis` of two."""
    table = np.frombuffer("".join(texts).encode(), np.uint8).reshape(len(texts), -1)
    return [np.expand_dims(column, 1 - axis) for column in table.T]


def scores(names: Sequence[str], replicas: Sequence[Replica]) -> NDArray[np.int64]:
    """Return the score of each name with each replica; the highest one wins, among equal hashes the highest id."""
    found = np.empty((len(names), len(replicas)), np.int64)
    rows = columns_of(names, 0)
    by_length = sorted(range(len(replicas)), key=lambda i: len(replicas[i].name))
    for _, group in groupby(by_length, lambda i: len(replicas[i].name)):
        chosen = list(group)
        tails = columns_of([f"/{replicas[i].name}" for i in chosen], 1)
        found[:, chosen] = xxh32([*rows, *tails]).astype(np.int64) << SHIFT
    return found + np.array([one.id for one in replicas], np.int64)


class Ranking:
    """For each name the replicas in the order of its hashes, as indices into `replicas`.

    Parameters
    ----------
    names
        Digests whose first `kept` replicas are computed beforehand. Others, and what is beyond, when asked for.
    """

    def __init__(self, replicas: Sequence[Replica], names: Sequence[str] = (), kept: int = 16) -> None:
        self.replicas = replicas
        kept = min(kept, len(replicas))
        self._first = np.empty((len(names), kept), np.uint16)
        self._row = {name: row for row, name in enumerate(names)}
        for start in range(0, len(names), BATCH):
            found = -scores(names[start : start + BATCH], replicas)
            best = np.argpartition(found, kept - 1, axis=1)[:, :kept]
            order = np.argsort(np.take_along_axis(found, best, 1), axis=1)
            self._first[start : start + BATCH] = np.take_along_axis(best, order, 1)

    def __call__(self, name: str) -> Iterator[int]:
        row = self._row.get(name)
        kept = [] if row is None else self._first[row].tolist()
        yield from kept
        yield from np.argsort(-scores([name], self.replicas)[0])[len(kept) :].tolist()
