"""Prefixes that were copied into plain memory, or their ghosts. Used by the engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix

MAX_PREFIXES = 64  # each is compared with every new prompt


class SwapStore:
    """Keeps at most `limit` bytes and `MAX_PREFIXES` prefixes; the least recently used make room.

    For the moment of a copy there is one more.
    """

    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self.limit = limit
        self.n_bytes = 0
        self._prefixes: list[SwappedPrefix] = []  # least recently used first

    def find(self, tokens: Sequence[int], room: int) -> tuple[SwappedPrefix | None, int]:
        """The one of at most `room` cells that most of `tokens` begin with, and how many; the shortest of equals."""
        fitting = [prefix for prefix in self._prefixes if prefix.n_tokens <= room]
        lengths = self._context.common_with(fitting, tokens)
        found = max(zip(lengths, fitting, strict=True), key=lambda pair: (pair[0], -pair[1].n_tokens), default=None)
        return (found[1], found[0]) if found is not None and found[0] else (None, 0)

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many leading `tokens` one of them has."""
        return max(self._known(tokens), default=0)

    def touch(self, tokens: Sequence[int]) -> bool:
        """Whether one of them begins with all of `tokens`; then that was used just now."""
        for n_tokens, prefix in zip(self._known(tokens), self._prefixes, strict=True):
            if n_tokens == len(tokens):
                self._prefixes.remove(prefix)
                self._prefixes.append(prefix)
                return True
        return False

    def add(self, prefix: SwappedPrefix) -> None:
        """Keep `prefix` in place of those that are its beginnings."""
        known = zip(self._known(prefix.tokens), self._prefixes, strict=True)
        kept = [old for n_tokens, old in known if n_tokens < old.n_tokens]
        self._prefixes = [*kept, prefix][-MAX_PREFIXES:]
        self.n_bytes = sum(old.n_bytes for old in self._prefixes)
        while self.n_bytes > self.limit:
            self.discard(self._prefixes[0])

    def discard(self, prefix: SwappedPrefix) -> None:
        """Forget `prefix`, if it is there."""
        if prefix in self._prefixes:
            self._prefixes.remove(prefix)
            self.n_bytes -= prefix.n_bytes

    def discard_copy(self, tokens: Sequence[int]) -> None:
        """Forget the one of all of `tokens`, and nothing else, if there is one."""
        for n_tokens, prefix in zip(self._known(tokens), self._prefixes, strict=True):
            if n_tokens == len(tokens) == prefix.n_tokens:
                self.discard(prefix)
                return  # of equals `add` keeps one

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """How many of `tokens` each has, all of them counted: of a prompt, the last one is not."""
        return self._context.common_with(self._prefixes, [*tokens, 0])
