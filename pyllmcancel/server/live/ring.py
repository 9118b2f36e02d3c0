"""The last facts, each with a number that grows by one. Touched by the event loop only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEPT = 20_000
F = TypeVar("F")


class Ring(Generic[F]):
    """Keeps the last `kept`, or some more: it is cut a tenth at a time.

    Attributes
    ----------
    first, newest
        Number of the oldest that is kept, and of the newest; without any `newest` is `first` - 1.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._facts: list[F] = []
        self.first = 1

    @property
    def newest(self) -> int:
        return self.first + len(self._facts) - 1

    def remembers(self, number: int) -> bool:
        """Return whether all that came after this number is here."""
        return self.first - 1 <= number <= self.newest

    def extend(self, facts: Iterable[F]) -> None:
        self._facts.extend(facts)
        excess = len(self._facts) - self._kept
        if excess > self._kept // 10:
            del self._facts[:excess]
            self.first += excess

    def after(self, number: int, most: int) -> Sequence[F]:
        """The facts that follow the one of this number, which it `remembers`."""
        begin = number + 1 - self.first
        return self._facts[begin : begin + most]

    def skip(self) -> None:
        """Forget all, and that nothing is missing: there are facts that nobody has written down."""
        self.first = self.newest + 2
        self._facts.clear()
