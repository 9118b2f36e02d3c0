"""The copies of prefixes in plain memory, least recently used first; and who holds a prefix, and which is forgotten
first. Used by the engine thread only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyllmcancel.adapters import UNADAPTED, Adapted
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.shares import largest_first

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix

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


def first_to_forget(
    kept: Sequence[T], holder_of: Callable[[T], Holder], size_of: Callable[[T], int], held: Mapping[str, int]
) -> Iterator[T]:
    """Yield `kept` prefixes, least recently used first, in the order in which to forget them.

    Those of idle requests are first; then each time one of the owner that has the most, by what is `held`. An owner's
    sessions are last.
    """
    others = sorted((one for one in kept if not holder_of(one).idle), key=lambda one: holder_of(one).in_session)
    yield from (one for one in kept if holder_of(one).idle)
    yield from largest_first(others, lambda one: holder_of(one).owner, size_of, held)


def first_usable(tokens: Sequence[int], limit: int) -> Sequence[int]:
    """Return the tokens of which a prefix can give `limit` at most: the last one of a prompt is never reused."""
    return tokens[: limit + 1]


class SwapStore:
    """At most `limit` bytes, and `MAX_PREFIXES`, of copies; the least recently used are deleted for a new one.

    Copies of the owner that has the most bytes are deleted first; within an owner, those of sessions last. While a copy
    is made there is one more. Each copy has a holder, and others find as much of it as they may use.
    """

    def __init__(self, context: Context, limit: int) -> None:
        self._context = context
        self.limit = limit
        self.n_bytes = 0
        self._holders: dict[SwappedPrefix, Holder] = {}  # the copies, least recently used first
        self._fresh: dict[SwappedPrefix, None] = {}  # those that `next_fresh` has not returned yet, oldest first

    def find(self, tokens: Sequence[int], room: int, holder: Holder) -> tuple[SwappedPrefix | None, int]:
        """Return the copy of at most `room` tokens that has the most leading `tokens`, and how many; among equals
        the shortest.
        """
        fitting = [pair for pair in self._common(tokens, holder) if pair[0].n_tokens <= room]
        found = max(fitting, key=lambda pair: (pair[1], -pair[0].n_tokens), default=None)
        return found if found is not None and found[1] else (None, 0)

    def longest_match(self, tokens: Sequence[int], holder: Holder) -> int:
        """Return how many leading `tokens` any copy has."""
        return max((n_tokens for _, n_tokens in self._matches(tokens, holder)), default=0)

    def touch(self, tokens: Sequence[int], holder: Holder) -> bool:
        """Return whether a copy begins with all of `tokens`; it is then the most recently used."""
        for prefix, n_tokens in self._matches(tokens, holder):
            if n_tokens == len(tokens):
                # Its last tokens, which `tokens` have not, may have been computed with other adapters.
                old = self._holders.pop(prefix)
                self._holders[prefix] = holder._replace(adapted=old.adapted, idle=holder.idle and old.idle)
                return True
        return False

    def add(self, prefix: SwappedPrefix, holder: Holder) -> None:
        """Keep `prefix`, and delete copies that it begins with."""
        for old, n_tokens in self._matches(prefix.tokens, holder):
            if n_tokens == old.n_tokens and (self._holders[old].idle or not holder.idle):
                self.discard(old)
        self._holders[prefix] = holder
        if not holder.idle:
            self._fresh[prefix] = None
        self.n_bytes += prefix.n_bytes
        if self._is_too_much():
            self._make_room()

    def _is_too_much(self) -> bool:
        return self.n_bytes > self.limit or len(self._holders) > MAX_PREFIXES

    def _make_room(self) -> None:
        held = Counter[str]()
        for prefix, holder in self._holders.items():
            held[holder.owner] += prefix.n_bytes
        holders = dict(self._holders)
        for prefix in first_to_forget([*holders], holders.__getitem__, lambda kept: kept.n_bytes, held):
            if not self._is_too_much():
                return
            self.discard(prefix)

    def discard(self, prefix: SwappedPrefix) -> None:
        """Delete `prefix`, if it is there."""
        if self._holders.pop(prefix, None) is not None:
            self._fresh.pop(prefix, None)
            self.n_bytes -= prefix.n_bytes

    def next_fresh(self) -> tuple[SwappedPrefix, Holder] | None:
        """Return a copy that was not returned before; None if there is none."""
        prefix = next(iter(self._fresh), None)
        if prefix is None:
            return None
        del self._fresh[prefix]
        return prefix, self._holders[prefix]

    @property
    def has_fresh(self) -> bool:
        """True if `next_fresh` has a copy to return."""
        return bool(self._fresh)

    def copy_of(self, tokens: Sequence[int], holder: Holder) -> SwappedPrefix | None:
        """Return the copy of exactly `tokens`, if there is one."""
        matches = self._matches(tokens, holder)
        return next((prefix for prefix, n_tokens in matches if n_tokens == len(tokens) == prefix.n_tokens), None)

    def erase(self, tokens: Sequence[int], holder: Holder) -> None:
        """Delete the copies that `tokens` begins with."""
        for prefix, n_tokens in self._matches(tokens, holder):
            if n_tokens == prefix.n_tokens:
                self.discard(prefix)

    def discard_copy(self, tokens: Sequence[int], holder: Holder) -> None:
        """Delete the copy of exactly `tokens`, if there is one."""
        prefix = self.copy_of(tokens, holder)
        if prefix is not None:
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
