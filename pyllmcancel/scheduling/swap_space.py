"""Idle prefixes that leave their cells. They are copied into plain memory, and back for a prompt that begins with them.

Every prefix is copied, unless it is too short to be useful or too large to wait for. That bounds the cost of copies:
for a 0.6B model, copying a token takes 0.02 ms, or 0.07 ms without huge pages, and computing one takes 1.4 ms or more.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.scheduling.swap_store import Holder, SwapStore, first_usable

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix


class Fetched(NamedTuple):
    """A prefix that was read from the disk."""

    prefix: SwappedPrefix
    holder: Holder


MIN_SHARED_TOKENS = 16  # shorter prefixes are neither copied nor given to another sequence
# Tokens copied for each token reused: divided cells, and those in plain memory, are copied as a whole.
MAX_COPIED_PER_REUSED = 8
# The limit of one prefix, while other requests wait: a cancel waits until the copy is done. 128 MiB take some 20 ms in
# huge pages, and 80 ms in ordinary ones.
MAX_COPIED_BYTES = 128 << 20


class SwapSpace:
    """At most `limit` bytes of copies; none if the context cannot copy cells. `holder` is always the prefix's."""

    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self._copies = SwapStore(context, limit if context.can_swap else 0)

    @property
    def limit(self) -> int:
        return self._copies.limit

    @property
    def n_bytes(self) -> int:
        return self._copies.n_bytes

    def find(
        self, tokens: Sequence[int], n_had: int, room: int, holder: Holder, fetched: Fetched | None = None
    ) -> tuple[SwappedPrefix | None, int]:
        """Return the copy to swap in for a prompt that has `n_had` tokens in cells, and how many tokens that gives it.

        Returns None if no copy of at most `room` tokens gives MIN_SHARED_TOKENS more, or if too many tokens are copied
        for each reused one. `fetched` was read from the disk for this prompt.
        """
        found, n_found = self._copies.find(tokens, room, holder)
        if fetched is not None and fetched.prefix.n_tokens <= room:
            usable = first_usable(tokens, holder.n_usable(fetched.holder))
            (n_fetched,) = self._context.common_with([fetched.prefix], usable)
            if n_fetched > n_found:
                found, n_found = fetched.prefix, n_fetched
        if found is None or n_found < max(n_had, 1) + MIN_SHARED_TOKENS:
            return None, 0
        return (found, n_found) if found.n_tokens <= MAX_COPIED_PER_REUSED * n_found else (None, 0)

    def can_copy(self, seq: int, *, alone: bool) -> bool:
        """Return whether `seq` can be swapped out, or has too few tokens to be copied. `alone`: no other request
        waits.
        """
        return self._is_negligible(seq) or self._context.swap_bytes(seq) <= self._max_bytes(alone=alone)

    def can_copy_beside_others(self, seq: int) -> bool:
        """Return whether `seq` is small enough that other requests can wait for its copy."""
        return self._context.swap_bytes(seq) <= MAX_COPIED_BYTES

    def n_copied(self, tokens: Sequence[int], holder: Holder) -> int:
        """Return how many leading `tokens` a copy has."""
        return self._copies.longest_match(tokens, holder)

    def copy_of(self, tokens: Sequence[int], holder: Holder) -> SwappedPrefix | None:
        """Return the copy of exactly `tokens`, if there is one."""
        return self._copies.copy_of(tokens, holder)

    def erase(self, tokens: Sequence[int], holder: Holder) -> None:
        """Delete the copies that `tokens` begins with."""
        self._copies.erase(tokens, holder)

    def has_copy(self, tokens: Sequence[int], holder: Holder) -> bool:
        """Return whether there is a copy of exactly `tokens`."""
        return self._copies.copy_of(tokens, holder) is not None

    def next_fresh(self) -> tuple[SwappedPrefix, Holder] | None:
        """Return a copy that was not returned before, with its holder; None if there is none."""
        return self._copies.next_fresh()

    @property
    def has_fresh(self) -> bool:
        """True if `next_fresh` has a copy to return."""
        return self._copies.has_fresh

    def discard_copy(self, tokens: Sequence[int], holder: Holder) -> None:
        """Delete the copy of exactly `tokens`, if there is one."""
        self._copies.discard_copy(tokens, holder)

    def copy_ahead(self, seq: int, holder: Holder) -> bool:
        """Copy the content of idle `seq`, and leave it in its cells; False if it cannot be copied, or has been."""
        return not self._is_negligible(seq) and not self._has_copy(seq, holder) and self._copy(seq, holder, alone=False)

    def swap_out(self, seq: int, holder: Holder, *, alone: bool = False) -> bool:
        """Free the cells of idle `seq` after copying them; False, and no change, if `seq` cannot be copied."""
        if not self.limit or self._is_negligible(seq):
            return False
        if not self._has_copy(seq, holder) and not self._copy(seq, holder, alone=alone):
            return False
        self._context.drop_cells(seq)
        return True

    def swap_in(self, seq: int, prefix: SwappedPrefix, n_tokens: int, *, keeps: bool) -> None:
        """Fill idle `seq` with `prefix`, of which a prompt has `n_tokens`; there should be room."""
        # The copy is kept if there was no room, if a prompt has only its beginning, or for others.
        if self._context.swap_in(seq, prefix) and prefix.n_tokens <= 2 * n_tokens and not keeps:
            self._copies.discard(prefix)

    def _is_negligible(self, seq: int) -> bool:
        """Return whether `seq` holds too few tokens to be copied."""
        return self._context.n_committed(seq) <= MIN_SHARED_TOKENS

    def _max_bytes(self, *, alone: bool) -> int:
        return self.limit if alone else min(MAX_COPIED_BYTES, self.limit)

    def _has_copy(self, seq: int, holder: Holder) -> bool:
        """Return whether a copy begins with all that `seq` holds; it is then the most recently used."""
        return self._copies.touch(self._context.tokens(seq), holder)

    def _copy(self, seq: int, holder: Holder, *, alone: bool) -> bool:
        """Copy the content of idle `seq`; False, and no change, if that is not possible."""
        prefix = self._context.copy_out(seq, max_bytes=self._max_bytes(alone=alone))
        if prefix is None:
            return False
        self._copies.add(prefix, holder)
        return True
