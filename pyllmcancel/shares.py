"""How owners share what is bounded, so that none of them takes what others need.

Two rules. What is given out and comes back is given to an owner only while it has no more of it than is left free: so
there is always some for the next owner, however many are greedy. Of what is kept, and forgotten when it is too much,
the owner that has the most loses its own first: so nobody loses anything to others within its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class Shares:
    """Given out and come back. Not synchronised.

    Parameters
    ----------
    total
        At most as much is given out, to all owners.
    several
        There are several owners; if there is one, it may have all.
    least
        As much is given to an owner in any case, if it is free.
    """

    def __init__(self, total: int, *, several: bool, least: int = 1) -> None:
        self._total = total
        self._several = several
        self._least = least
        self._held = Counter[str]()

    def take(self, owner: str, amount: int = 1) -> bool:
        """Whether there was room for so much more."""
        held, free = self._held[owner] + amount, self._total - self._held.total() - amount
        fits = free >= 0 and (not self._several or held <= max(free, self._least))
        if fits:
            self._held[owner] = held
        return fits

    def give_back(self, owner: str, amount: int = 1) -> None:
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]


def largest_first(
    kept: Iterable[T], owner_of: Callable[[T], str], size_of: Callable[[T], int], held: Mapping[str, int]
) -> Iterator[T]:
    """What is kept, in the order in which it is to be forgotten: each time the next one of the owner with the most.

    Parameters
    ----------
    kept
        What can be forgotten. That of one owner keeps its order.
    held
        What each owner has in all.
    """
    queues: dict[str, list[T]] = {}
    for one in kept:
        queues.setdefault(owner_of(one), []).append(one)
    left = {owner: held.get(owner, 0) for owner in queues}
    places = dict.fromkeys(queues, 0)
    while left:
        owner = max(left, key=left.__getitem__)
        one = queues[owner][places[owner]]
        places[owner] += 1
        left[owner] -= size_of(one)
        if places[owner] == len(queues[owner]):
            del left[owner]
        yield one
