"""The copies of prefixes in plain memory, least recently used first. Used by the engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix

MAX_PREFIXES = 64  # every new prompt is compared with each


class SwapStore:
    """At most `limit` bytes, and `MAX_PREFIXES`, of copies; the least recently used are deleted for a new one.

    While a copy is made there is one more.
    """

    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self.limit = limit
        self.n_bytes = 0
        self._prefixes: list[SwappedPrefix] = []  # least recently used first

    def find(self, tokens: Sequence[int], room: int) -> tuple[SwappedPrefix | None, int]:
        """The copy of at most `room` tokens that has most leading `tokens`, and how many; of equals the shortest."""
        fitting = [prefix for prefix in self._prefixes if prefix.n_tokens <= room]
        lengths = self._context.common_with(fitting, tokens)
        found = max(zip(lengths, fitting, strict=True), key=lambda pair: (pair[0], -pair[1].n_tokens), default=None)
        return (found[1], found[0]) if found is not None and found[0] else (None, 0)

    def longest_match(self, tokens: Sequence[int]) -> int:
        """How many leading `tokens` any copy has."""
        return max(self._matches(tokens), default=0)

    def touch(self, tokens: Sequence[int]) -> bool:
        """Whether a copy begins with all of `tokens`; it is then the most recently used."""
        for n_tokens, prefix in zip(self._matches(tokens), self._prefixes, strict=True):
            if n_tokens == len(tokens):
                self._prefixes.remove(prefix)
                self._prefixes.append(prefix)
                return True
        return False

    def add(self, prefix: SwappedPrefix) -> None:
        """Keep `prefix`, and delete copies that it begins with."""
        known = zip(self._matches(prefix.tokens), self._prefixes, strict=True)
        kept = [old for n_tokens, old in known if n_tokens < old.n_tokens]
        self._prefixes = [*kept, prefix][-MAX_PREFIXES:]
        self.n_bytes = sum(old.n_bytes for old in self._prefixes)
        while self.n_bytes > self.limit:
            self.discard(self._prefixes[0])

    def discard(self, prefix: SwappedPrefix) -> None:
        """Delete `prefix`, if it is there."""
        if prefix in self._prefixes:
            self._prefixes.remove(prefix)
            self.n_bytes -= prefix.n_bytes

    def discard_copy(self, tokens: Sequence[int]) -> None:
        """Delete the copy of exactly `tokens`, if there is one."""
        for n_tokens, prefix in zip(self._matches(tokens), self._prefixes, strict=True):
            if n_tokens == len(tokens) == prefix.n_tokens:
                self.discard(prefix)
                return  # `add` keeps one of equals

    def _matches(self, tokens: Sequence[int]) -> list[int]:
        """How many leading `tokens` each copy has, the last one counted too, unlike that of a prompt."""
        return self._context.common_with(self._prefixes, [*tokens, 0])
