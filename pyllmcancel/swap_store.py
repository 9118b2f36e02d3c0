"""Prefixes that left the context's cells for plain memory. Used by the engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix

MOST_PREFIXES = 64  # each is compared with every new prompt


class SwapStore:
    """At most `limit` bytes, least recently used first."""

    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self.limit = limit
        self.n_bytes = 0
        self._prefixes: list[SwappedPrefix] = []

    def find(self, tokens: Sequence[int], room: int) -> tuple[SwappedPrefix | None, int]:
        """The one of at most `room` cells that most of `tokens` begin with, and how many; the shortest of equals."""
        lengths = self._context.common_with(self._prefixes, tokens)
        found = [(n, -prefix.n_tokens, i) for i, (n, prefix) in enumerate(zip(lengths, self._prefixes, strict=True))]
        n_tokens, _, i = max((entry for entry in found if -entry[1] <= room), default=(0, 0, -1))
        return (self._prefixes[i], n_tokens) if n_tokens else (None, 0)

    def covers(self, tokens: Sequence[int]) -> bool:
        """Whether one of them begins with all of `tokens`."""
        prompt = [*tokens, 0]  # of a prompt, the last token never counts
        return any(n == len(tokens) for n in self._context.common_with(self._prefixes, prompt))

    def add(self, prefix: SwappedPrefix, tokens: Sequence[int]) -> None:
        """Keep `prefix`, of `tokens`, in place of what it begins with; the least recently used make room."""
        lengths = self._context.common_with(self._prefixes, [*tokens, 0])
        kept = [old for n, old in zip(lengths, self._prefixes, strict=True) if n < old.n_tokens]
        self._prefixes = [*kept, prefix][-MOST_PREFIXES:]
        self.n_bytes = sum(old.n_bytes for old in self._prefixes)
        while self.n_bytes > self.limit:
            self.n_bytes -= self._prefixes.pop(0).n_bytes

    def remove(self, prefix: SwappedPrefix) -> None:
        self._prefixes.remove(prefix)
        self.n_bytes -= prefix.n_bytes
