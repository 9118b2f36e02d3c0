"""Which idle sequence a new choice should start from.

An ended sequence keeps its cells until they are needed: they are a prefix that a later request may begin with. Used by
the engine thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel._native import Context

SHARE_AT_LEAST = 16  # tokens; below that, copying a prefix is not worth a sequence


@dataclass(frozen=True, slots=True)
class Place:
    """Where to open a choice: in `seq`, after sharing `n_shared` leading cells from `source`, if that is not None."""

    seq: int
    source: int | None = None
    n_shared: int = 0


class PrefixCache:
    """Idle sequences, least recently used first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # A dict keeps the order: least recently used first.
        self._idle: dict[int, None] = dict.fromkeys(range(context.n_seq_max))

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def n_cells(self) -> int:
        """Cells that idle prefixes hold."""
        return sum(self._context.n_committed(seq) for seq in self._idle)

    def find(self, tokens: Sequence[int], running: Collection[int]) -> Place:
        """The best place for a prompt; there must be an idle sequence.

        The longest prefix wins. It is shared into another sequence, rather than taken over, when it belongs to a
        running one, or when taking it over would throw away the longer rest of what an idle one remembers.
        """
        lengths = self._context.common_prefixes(tokens)
        best_idle = max(reversed(self._idle), key=lambda seq: lengths[seq])
        best_running = max(running, key=lambda seq: lengths[seq], default=None)
        target = next(iter(self._idle))
        if best_running is not None and lengths[best_running] >= max(lengths[best_idle], 1) + SHARE_AT_LEAST:
            return Place(target, best_running, lengths[best_running])
        length = lengths[best_idle]
        if length == 0:
            return Place(target)
        lost = self._context.n_committed(best_idle) - length
        if lost > length >= SHARE_AT_LEAST and target != best_idle and not self._context.n_committed(target):
            return Place(target, best_idle, length)
        return Place(best_idle)

    def take(self, seq: int) -> None:
        """A choice opens on `seq`: it is idle no more."""
        del self._idle[seq]

    def give_back(self, seq: int) -> None:
        """`seq` is idle again, and the most recently used."""
        self._idle[seq] = None

    def evict(self, n_cells: int) -> None:
        """Free at least `n_cells` cells, least recently used first, as far as there are any."""
        for seq in self._idle:
            if n_cells <= 0:
                return
            held = self._context.n_committed(seq)
            if held:
                self._context.drop_cells(seq)
                n_cells -= held
