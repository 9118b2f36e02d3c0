"""The sharing of limited resources among owners, so that none takes what others need.

There are two rules. The first is for resources that are given out and come back: an owner gets more only while it has
no more than is left free. So there is always some for the next owner, however many owners are greedy. The second is for
things that are kept until there are too many: the owner that has the most loses its own first. So no owner loses
anything to others within its share.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class Owners:
    """The owners who share a server. A worker learns from the first request of a front whether there are several."""

    def __init__(self, *, several: bool) -> None:
        self.several = several


class Shares:
    """A resource that is given out and comes back, `total` at most to all owners together. Not synchronised.

    A single owner may have all, unless there are several. An owner gets `least` in any case, if that is free.
    """

    def __init__(self, total: int, owners: Owners, least: int = 1) -> None:
        self._total = total
        self._owners = owners
        self._least = least
        self._held = Counter[str]()

    def has(self, owner: str, amount: int = 1) -> bool:
        """Return whether an owner may take `amount` more."""
        held, free = self._held[owner] + amount, self._total - self._held.total() - amount
        return free >= 0 and (not self._owners.several or held <= max(free, self._least))

    def take(self, owner: str, amount: int = 1) -> bool:
        """Take the amount if there is room; return whether there was."""
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
    kept: Iterable[T],
    owner_of: Callable[[T], str],
    size_of: Callable[[T], int],
    held: Mapping[str, int] | None = None,
) -> Iterator[T]:
    """Yield the kept items in the order in which to forget them: each time the next one of the owner with the most.

    The items of one owner keep their order. `held` is the total of each owner, by default that of the items.
    """
    queues = defaultdict[str, deque[T]](deque)
    for one in kept:
        queues[owner_of(one)].append(one)
    left = {owner: sum(map(size_of, own)) if held is None else held.get(owner, 0) for owner, own in queues.items()}
    while left:
        owner = max(left, key=left.__getitem__)
        one = queues[owner].popleft()
        left[owner] -= size_of(one)
        if not queues[owner]:
            del left[owner]
        yield one
