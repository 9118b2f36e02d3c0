"""Plain memory for idle prefixes that leave their cells, copied or by name only. Used by the engine thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.swap_policy import SwapPolicy
from pyllmcancel.swap_store import SwapStore

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix
    from pyllmcancel.step_cost import StepCostModel

MIN_SHARED_TOKENS = 16  # tokens; fewer are not worth a copy, nor a sequence
# Tokens that may be copied for each that need not be computed then: divided cells, and those in plain memory, are
# copied as a whole. Of a 0.6B model copying one takes 0.02 ms, without huge pages 0.07, and computing one 1.4 or more.
MAX_COPIED_PER_REUSED = 8
# Bytes of one prefix, while others wait: nobody can be cancelled while it is copied. 128 MiB take some 20 ms in huge
# pages, and 80 in ordinary ones.
MAX_COPIED_BYTES = 128 << 20


class SwapMatch(NamedTuple):
    """What of a prompt had left its cells: there is a copy of `prefix`, which gives so many tokens, or a mere `ghost`.

    `share` of it would be new to the prompt; `returns` where that, or what is in cells, is most of the prompt.
    """

    prefix: SwappedPrefix | None = None
    n_tokens: int = 0
    ghost: SwappedPrefix | None = None
    share: float = 0.0
    returns: bool = False


class SwapSpace:
    """At most `limit` bytes of copies; none where the context cannot copy."""

    def __init__(self, context: Context, cost: StepCostModel, limit: int) -> None:
        self._context = context
        self._copies = SwapStore(context, limit if context.can_swap else 0)
        # What left without a copy.
        self._ghosts = SwapStore(context, 0)
        self._policy = SwapPolicy(cost)
        # Sequences, idle or not, of clients that came back at least once, and will again: always worth a copy.
        self._returning: set[int] = set()

    @property
    def limit(self) -> int:
        return self._copies.limit

    @property
    def n_bytes(self) -> int:
        return self._copies.n_bytes

    def swap_match(self, tokens: Sequence[int], n_had: int, room: int) -> SwapMatch:
        """What to swap in for a prompt that has `n_had` tokens in cells anyway, if there is `room` for so many."""
        prefix, n_tokens = self._find(self._copies, tokens, n_had, room)
        ghost, n_missed = self._find(self._ghosts, tokens, max(n_had, n_tokens), room)
        had_left = ghost or prefix
        share = (max(n_tokens, n_missed) - n_had) / had_left.n_tokens if had_left is not None else 0.0
        return SwapMatch(prefix, n_tokens, ghost, share, returns=2 * max(n_had, n_tokens, n_missed) >= len(tokens))

    def _find(self, store: SwapStore, tokens: Sequence[int], n_had: int, room: int) -> tuple[SwappedPrefix | None, int]:
        found, n_found = store.find(tokens, room)
        if (
            found is None
            or n_found < max(n_had, 1) + MIN_SHARED_TOKENS
            or found.n_tokens > MAX_COPIED_PER_REUSED * n_found
        ):
            return None, 0
        return found, n_found

    def note_opened(self, seq: int, swap_match: SwapMatch) -> None:
        """Somebody opens in `seq` of whose prompt `swap_match` is true."""
        self._policy.note_returned(swap_match.share)
        if swap_match.ghost is not None:
            self._ghosts.discard(swap_match.ghost)
        if swap_match.returns:
            self._returning.add(seq)
        else:
            self._returning.discard(seq)

    def is_negligible(self, seq: int) -> bool:
        """Whether what `seq` holds is nothing to speak of."""
        return self._context.n_committed(seq) <= MIN_SHARED_TOKENS

    def can_copy_beside_others(self, seq: int) -> bool:
        """Whether others than the one for whom `seq` is copied can wait for that."""
        return self._context.swap_bytes(seq) <= MAX_COPIED_BYTES

    def can_copy(self, seq: int, *, alone: bool) -> bool:
        """Whether what `seq` holds may be swapped out, with nobody else about if `alone`, or is nothing to speak of."""
        return self.is_negligible(seq) or self._context.swap_bytes(seq) <= self._max_bytes(alone=alone)

    def would_copy(self, seq: int) -> bool:
        """Whether it would be, for somebody who waits, beside others, or is nothing to speak of."""
        return self.can_copy(seq, alone=False) and (self.is_negligible(seq) or self._is_worth_copying(seq))

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many leading `tokens` a copy has."""
        return self._copies.n_known(tokens)

    def discard_copy(self, tokens: Sequence[int]) -> None:
        """Forget the copy of all of `tokens`, and nothing else, if there is one."""
        self._copies.discard_copy(tokens)

    def copy_ahead(self, seq: int) -> bool:
        """Copy what idle `seq` holds, and leave it in its cells; False if that cannot be, or has been done."""
        return not self.is_negligible(seq) and not self._has_copy(seq) and self._copy(seq, alone=False)

    def swap_out(self, seq: int, *, alone: bool = False) -> bool:
        """Free the cells of idle `seq`, and remember what they held; False, and no change, if that cannot be.

        Of what is not worth a copy, but not too long for one, the name is all that is remembered.
        """
        if not self.limit or self.is_negligible(seq):
            return False
        if not self._has_copy(seq):
            if not self.can_copy(seq, alone=alone):
                return False
            if not self._is_worth_copying(seq):
                self._policy.note_skipped()
                self._ghosts.add(self._context.ghost(seq))
            elif not self._copy(seq, alone=alone):
                return False
        self._policy.note_left()
        self._context.drop_cells(seq)
        return True

    def swap_in(self, seq: int, prefix: SwappedPrefix, n_tokens: int) -> None:
        """Have idle `seq` hold `prefix`, of which `n_tokens` are wanted; there should be room."""
        # One that found no room, or of which only the beginning is wanted, is not forgotten.
        if self._context.swap_in(seq, prefix) and prefix.n_tokens <= 2 * n_tokens:
            self._copies.discard(prefix)

    def _max_bytes(self, *, alone: bool) -> int:
        return self._copies.limit if alone else min(MAX_COPIED_BYTES, self._copies.limit)

    def _is_worth_copying(self, seq: int) -> bool:
        if seq in self._returning:
            return True
        return self._policy.is_worth_copying(self._context.n_committed(seq), self._context.swap_bytes(seq))

    def _has_copy(self, seq: int) -> bool:
        """Whether what `seq` holds is in plain memory; then it was used just now."""
        return self._copies.touch(self._context.tokens(seq))

    def _copy(self, seq: int, *, alone: bool) -> bool:
        """Copy what idle `seq` holds; False, and no change, if that cannot be."""
        prefix = self._context.copy_out(seq, max_bytes=self._max_bytes(alone=alone))
        if prefix is None:
            return False
        self._policy.note_copy(prefix.n_bytes, prefix.seconds)
        self._copies.add(prefix)
        self._ghosts.discard_copy(prefix.tokens)
        return True
