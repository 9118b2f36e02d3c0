"""Idle prefixes that leave their cells. They are copied into plain memory, and back for a prompt that begins with them.

Every prefix is copied, unless it is too short to be useful or too large to wait for. That bounds the cost of copies:
for a 0.6B model, copying a token takes 0.02 ms, or 0.07 ms without huge pages, and computing one takes 1.4 ms or more.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyllmcancel.adapters import UNADAPTED, Adapted
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.shares import largest_first

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix

MIN_SHARED_TOKENS = 16  # shorter prefixes are neither copied nor given to another sequence
# Tokens copied for each token reused: divided cells, and those in plain memory, are copied as a whole.
MAX_COPIED_PER_REUSED = 8
# The limit of one prefix, while other requests wait: a cancel waits until the copy is done. 128 MiB take some 20 ms in
# huge pages, and 80 ms in ordinary ones.
MAX_COPIED_BYTES = 128 << 20
MAX_PREFIXES = 64  # every new prompt is compared with each

T = TypeVar("T")


class Holder(NamedTuple):
    """The owner of a prefix, the adapters that it was computed with, and whether it is a session's, which is kept
    longer, or an idle request's, which is forgotten before others.
    """

    owner: str = NO_OWNER
    in_session: bool = False
    adapted: Adapted = UNADAPTED
    idle: bool = False

    def n_usable(self, other: Holder) -> int:
        """Return the limit of leading tokens of a prefix of `other` that may be used here: none of another owner's,
        and none that other adapters have computed.
        """
        return self.adapted.n_alike(other.adapted) if self.owner == other.owner else 0


NO_HOLDER = Holder()


class Fetched(NamedTuple):
    """A prefix that was read from the disk."""

    prefix: SwappedPrefix
    holder: Holder


class SwapSpace:
    """At most `limit` bytes, and `MAX_PREFIXES`, of copies; none if the context cannot copy cells.

    Copies of the owner that has the most bytes are deleted first; within an owner, those of sessions last. While a copy
    is made there is one more. Each copy has a holder, and others find as much of it as they may use. A parameter
    `holder` is always the prefix's, or the prompt's. `fresh` are the copies that `next_fresh` has not returned yet,
    oldest first.
    """

    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self.limit = limit if context.can_swap else 0
        self.n_bytes = 0
        self._holders: dict[SwappedPrefix, Holder] = {}  # the copies, least recently used first
        self.fresh: dict[SwappedPrefix, None] = {}

    # -- copies and prompts -------------------------------------------------------------------------------------------

    def find(
        self, tokens: Sequence[int], n_had: int, room: int, holder: Holder, fetched: Fetched | None = None
    ) -> tuple[SwappedPrefix | None, int]:
        """Return the copy to swap in for a prompt that has `n_had` tokens in cells, and how many tokens that gives it.

        Among equals the shortest is returned. Returns None if no copy of at most `room` tokens gives MIN_SHARED_TOKENS
        more, or if too many tokens are copied for each reused one. `fetched` was read from the disk for this prompt.
        """
        fitting = [pair for pair in self._common(tokens, holder) if pair[0].n_tokens <= room]
        if fetched is not None and fetched.prefix.n_tokens <= room:
            usable = first_usable(tokens, holder.n_usable(fetched.holder))
            fitting.append((fetched.prefix, self._context.common_with([fetched.prefix], usable)[0]))
        found, n_found = max(fitting, key=lambda pair: (pair[1], -pair[0].n_tokens), default=(None, 0))
        if found is None or n_found < max(n_had, 1) + MIN_SHARED_TOKENS:
            return None, 0
        return (found, n_found) if found.n_tokens <= MAX_COPIED_PER_REUSED * n_found else (None, 0)

    def n_copied(self, tokens: Sequence[int], holder: Holder) -> int:
        """Return how many leading `tokens` a copy has."""
        return max((n_tokens for _, n_tokens in self._matches(tokens, holder)), default=0)

    def copy_of(self, tokens: Sequence[int], holder: Holder) -> SwappedPrefix | None:
        """Return the copy of exactly `tokens`, if there is one."""
        matches = self._matches(tokens, holder)
        return next((prefix for prefix, n_tokens in matches if n_tokens == len(tokens) == prefix.n_tokens), None)

    def next_fresh(self) -> tuple[SwappedPrefix, Holder] | None:
        """Return a copy that was not returned before, with its holder; None if there is none."""
        prefix = next(iter(self.fresh), None)
        if prefix is None:
            return None
        del self.fresh[prefix]
        return prefix, self._holders[prefix]

    def add(self, prefix: SwappedPrefix, holder: Holder) -> None:
        """Keep `prefix`, and delete copies that it begins with."""
        for old, n_tokens in self._matches(prefix.tokens, holder):
            if n_tokens == old.n_tokens and (self._holders[old].idle or not holder.idle):
                self.discard(old)
        self._holders[prefix] = holder
        if not holder.idle:
            self.fresh[prefix] = None
        self.n_bytes += prefix.n_bytes
        if self._is_too_much():
            self._make_room()

    def discard(self, prefix: SwappedPrefix | None) -> None:
        """Delete `prefix`, if it is there."""
        if prefix is not None and self._holders.pop(prefix, None) is not None:
            self.fresh.pop(prefix, None)
            self.n_bytes -= prefix.n_bytes

    def erase(self, tokens: Sequence[int], holder: Holder) -> None:
        """Delete the copies that `tokens` begins with."""
        for prefix, n_tokens in self._matches(tokens, holder):
            if n_tokens == prefix.n_tokens:
                self.discard(prefix)

    def _is_too_much(self) -> bool:
        return self.n_bytes > self.limit or len(self._holders) > MAX_PREFIXES

    def _make_room(self) -> None:
        holders = dict(self._holders)
        for prefix in first_to_forget([*holders], holders.__getitem__, lambda kept: kept.n_bytes):
            if not self._is_too_much():
                return
            self.discard(prefix)

    def _common(self, tokens: Sequence[int], holder: Holder) -> list[tuple[SwappedPrefix, int]]:
        """Return the copies that `holder` may use, and how many leading `tokens` each could give to a prompt."""
        by_limit: dict[int, list[SwappedPrefix]] = {}
        for prefix, other in self._holders.items():
            by_limit.setdefault(holder.n_usable(other), []).append(prefix)
        found: dict[SwappedPrefix, int] = {}
        for limit, prefixes in by_limit.items():
            if limit:
                lengths = self._context.common_with(prefixes, first_usable(tokens, limit))
                found |= zip(prefixes, lengths, strict=True)
        return [(prefix, found[prefix]) for prefix in self._holders if prefix in found]

    def _matches(self, tokens: Sequence[int], holder: Holder) -> list[tuple[SwappedPrefix, int]]:
        """As `_common`; but unlike in a prompt, the last token counts, too."""
        return self._common([*tokens, 0], holder)

    # -- from cells, and back -----------------------------------------------------------------------------------------

    def can_copy(self, seq: int, *, alone: bool) -> bool:
        """Return whether `seq` can be swapped out, or has too few tokens to be copied. `alone`: no other request
        waits.
        """
        return self._is_negligible(seq) or self._context.swap_bytes(seq) <= self._max_bytes(alone=alone)

    def can_copy_beside_others(self, seq: int) -> bool:
        """Return whether `seq` is small enough that other requests can wait for its copy."""
        return self._context.swap_bytes(seq) <= MAX_COPIED_BYTES

    def copy_early(self, seq: int, holder: Holder) -> bool:
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
            self.discard(prefix)

    def _is_negligible(self, seq: int) -> bool:
        """Return whether `seq` holds too few tokens to be copied."""
        return self._context.n_committed(seq) <= MIN_SHARED_TOKENS

    def _max_bytes(self, *, alone: bool) -> int:
        return self.limit if alone else min(MAX_COPIED_BYTES, self.limit)

    def _has_copy(self, seq: int, holder: Holder) -> bool:
        """Return whether a copy begins with all that `seq` holds; it is then the most recently used."""
        tokens = self._context.tokens(seq)
        for prefix, n_tokens in self._matches(tokens, holder):
            if n_tokens == len(tokens):
                # Its last tokens, which `seq` has not, may have been computed with other adapters.
                old = self._holders.pop(prefix)
                self._holders[prefix] = holder._replace(adapted=old.adapted, idle=holder.idle and old.idle)
                return True
        return False

    def _copy(self, seq: int, holder: Holder, *, alone: bool) -> bool:
        """Copy the content of idle `seq`; False, and no change, if that is not possible."""
        prefix = self._context.copy_out(seq, max_bytes=self._max_bytes(alone=alone))
        if prefix is None:
            return False
        self.add(prefix, holder)
        return True


def first_to_forget(
    kept: Sequence[T],
    holder_of: Callable[[T], Holder],
    size_of: Callable[[T], int],
    held: Mapping[str, int] | None = None,
) -> Iterator[T]:
    """Yield `kept` prefixes, least recently used first, in the order in which to forget them.

    Those of idle requests are first; then each time one of the owner that has the most, by what is `held`, or `kept`.
    An owner's sessions are last.
    """
    others = sorted((one for one in kept if not holder_of(one).idle), key=lambda one: holder_of(one).in_session)
    yield from (one for one in kept if holder_of(one).idle)
    yield from largest_first(others, lambda one: holder_of(one).owner, size_of, held)


def first_usable(tokens: Sequence[int], limit: int) -> Sequence[int]:
    """Return the tokens of which a prefix can give `limit` at most: the last one of a prompt is never reused."""
    return tokens[: limit + 1]
