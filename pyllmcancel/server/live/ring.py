"""The last facts, each with a number that grows by one. Used in the event loop only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEPT = 20_000
F = TypeVar("F")


class Ring(Generic[F]):
    """Keeps the last `kept` facts, or some more: it is cut a tenth at a time. `first` is the oldest one's number."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._facts: list[F] = []
        self.first = 1

    @property
    def newest(self) -> int:
        return self.first + len(self._facts) - 1

    def remembers(self, number: int) -> bool:
        """Return whether all facts after this number are here."""
        return self.first - 1 <= number <= self.newest

    def extend(self, facts: Iterable[F]) -> None:
        self._facts.extend(facts)
        excess = len(self._facts) - self._kept
        if excess > self._kept // 10:
            del self._facts[:excess]
            self.first += excess

    def after(self, number: int, most: int) -> Sequence[F]:
        """Return the facts after the one of this number, which the ring must remember."""
        begin = number + 1 - self.first
        return self._facts[begin : begin + most]

    def skip(self) -> None:
        """Forget all facts, and note a gap: facts were not recorded."""
        self.first = self.newest + 2
        self._facts.clear()
