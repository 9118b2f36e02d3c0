"""How owners share what is bounded, so that none of them takes what others need.

Two rules. What is given out and comes back is given to an owner only while it has no more of it than is left free: so
there is always some for the next owner, however many are greedy. Of what is kept, and forgotten when it is too much,
the owner that has the most loses its own first: so nobody loses anything to others within its share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
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

    def has(self, owner: str, amount: int = 1) -> bool:
        """Return whether there is room for so much more of an owner's."""
        held, free = self._held[owner] + amount, self._total - self._held.total() - amount
        return free >= 0 and (not self._several or held <= max(free, self._least))

    def take(self, owner: str, amount: int = 1) -> bool:
        """Return whether there was."""
        fits = self.has(owner, amount)
        if fits:
            self._held[owner] += amount
        return fits

    def give_back(self, owner: str, amount: int = 1) -> None:
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]


class Remembered(Generic[K, T]):
    """The last entries: at most `most`, of which the owner with the most loses its oldest. Not synchronised."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, dict[K, T]] = {}  # by owner, oldest first

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def put(self, owner: str, key: K, value: T) -> None:
        self._of.setdefault(owner, {})[key] = value
        if len(self) > self._most:
            largest = max(self._of, key=lambda one: len(self._of[one]))
            self.pop(largest, next(iter(self._of[largest])))

    def get(self, owner: str, key: K) -> T | None:
        return self._of.get(owner, {}).get(key)

    def pop(self, owner: str, key: K) -> T | None:
        own = self._of.get(owner, {})
        value = own.pop(key, None)
        if not own:
            self._of.pop(owner, None)
        return value


def largest_first(
    kept: Iterable[T], owner_of: Callable[[T], str], size_of: Callable[[T], int], held: Mapping[str, int]
) -> Iterator[T]:
    """Yield the kept items in the order in which to forget them: each time the next one of the owner with the most.

    Parameters
    ----------
    kept
        The items that can be forgotten. Those of one owner keep their order.
    held
        The total of each owner.
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
