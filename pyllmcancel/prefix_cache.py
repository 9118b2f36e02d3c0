"""Which idle prefix a new choice should start from.

An ended sequence keeps its cells: they are a prefix that a later request may begin with. Where the context is on a CPU
they can be swapped out into plain memory. Unified cells are freed if nobody wants them for some steps: every attention
walks over all cells, and shares the walk among the threads, so that idle ones slow down whoever runs. Divided cells are
where others want the place. While nobody computes they are copied beforehand, and left where they are: nobody who runs
later, no newcomer to that place, and not the client that comes back, need wait for a copy. Where somebody does wait it
is made if it is worth that; else what they held is forgotten. Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyllmcancel.swap_space import COPIED_FOR_ONE, SHARE_AT_LEAST, Recall, SwapSpace

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix
    from pyllmcancel.step_cost import StepCostModel

SWAP_AFTER = 8  # steps; a client that goes on at once finds its cells where they were
# Bytes of one prefix, for a request that would else compute it again. Nobody can be cancelled while it is copied.
SHARE_AT_MOST = 1 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """Where to open a choice: in `seq`, after it was given `n_shared` leading cells.

    They are those of `source`, or were `swapped` out; with neither, `seq` holds them itself.
    """

    seq: int
    source: int | None = None
    n_shared: int = 0
    swapped: SwappedPrefix | None = None
    recall: Recall = field(default=Recall(), compare=False)

    @property
    def keeps_own(self) -> bool:
        """Whether the choice goes on from what `seq` holds already."""
        return self.n_shared > 0 and self.source is None and self.swapped is None


def _neighbours(seq: int, running: Collection[int]) -> int:
    return (seq - 1 in running) + (seq + 1 in running)


def _spread(seq: int, running: Collection[int]) -> int:
    """How far apart the sequences of a step are with `seq` among them."""
    return max(seq, *running) - min(seq, *running) if running else 0


class PrefixCache:
    """Idle prefixes: in sequences, least recently used first, and up to `swap_bytes` bytes of them in plain memory."""

    def __init__(self, context: Context, cost: StepCostModel, *, swap_bytes: int = 0) -> None:
        self._context = context
        self._swap = SwapSpace(context, cost, swap_bytes)
        self._step = 0
        # By the step from which to count SWAP_AFTER. A dict keeps the order.
        self._idle: dict[int, int] = dict.fromkeys(range(context.n_seq_max), 0)
        # Idle ones that `make_ready` has not looked at. With more to copy than may be kept it would never end.
        self._fresh = set(self._idle)

    def __len__(self) -> int:
        """Sequences that are idle."""
        return len(self._idle)

    @property
    def n_cells(self) -> int:
        """Cells that idle prefixes hold, and nobody who runs."""
        running = [seq for seq in range(self._context.n_seq_max) if seq not in self._idle]
        return self._context.n_cells_used - self._context.n_cells_of(running)

    @property
    def swapped_bytes(self) -> int:
        return self._swap.n_bytes

    def find(self, tokens: Sequence[int], running: Collection[int]) -> Place:
        """The best place for a prompt; there must be an idle sequence."""
        spare = self._spare(running)
        place, n_tokens = self._find_in_cells(tokens, running, spare)
        # What is idle can give way to what was swapped out; what runs cannot.
        room = self._context.n_cells - (self._context.n_cells_used - self.n_cells)
        recall = self._swap.recall(tokens, n_tokens, min(room, self._context.n_ctx))
        if recall.prefix is not None:
            place = Place(spare, None, recall.n_tokens, recall.prefix)
        return replace(place, recall=recall)

    def _find_in_cells(self, tokens: Sequence[int], running: Collection[int], target: int) -> tuple[Place, int]:
        """The best place but for what is swapped out, and how many tokens it gives.

        The longest prefix wins. It is shared into another sequence, rather than taken over, when it belongs to a
        running one, when taking it over would throw away the longer rest of what an idle one remembers, or when each
        step would compute it apart from the others.
        """
        lengths = self._context.common_prefixes(tokens)
        usable = {seq: self._usable(seq, lengths[seq]) for seq in reversed(self._idle)}
        best_idle = max(usable, key=usable.__getitem__)
        n_tokens = usable[best_idle]
        sources = [seq for seq in running if self._is_worth_sharing(seq, lengths[seq])]
        best_running = max(sources, key=lambda seq: lengths[seq], default=None)
        if best_running is not None and lengths[best_running] >= max(n_tokens, 1) + SHARE_AT_LEAST:
            return Place(target, best_running, lengths[best_running]), lengths[best_running]
        if n_tokens == 0:
            return Place(target), 0
        is_free = target != best_idle and not self._context.n_committed(target)
        shares = is_free and not self._loses_little(best_idle, n_tokens)
        if shares or self._computes_apart(best_idle, target, running):
            return Place(target, best_idle, n_tokens), n_tokens
        return Place(best_idle, None, n_tokens), n_tokens

    def _usable(self, seq: int, n_tokens: int) -> int:
        """How many of the `n_tokens` that idle `seq` begins with are worth having, for what that loses or copies."""
        if self._loses_little(seq, n_tokens):
            return n_tokens
        return n_tokens if n_tokens >= SHARE_AT_LEAST and self._is_worth_sharing(seq, n_tokens) else 0

    def _loses_little(self, seq: int, n_tokens: int) -> bool:
        """Whether a choice that takes `seq` over finds there at least what it throws away."""
        return self._context.n_committed(seq) <= 2 * n_tokens

    def _computes_apart(self, seq: int, target: int, running: Collection[int]) -> bool:
        """Of divided cells: whether in `seq`, and not in `target`, every step had a pass for this choice alone."""
        if self._context.kv_unified or _neighbours(seq, running) or not _neighbours(target, running):
            return False
        # And whether that can be helped, with a short copy and without losing what is in `target`.
        return self._context.can_swap and self._swap.is_short(seq) and self._swap.would_remember(target)

    def take(self, place: Place, running: Collection[int]) -> None:
        """A choice opens in `place`, whose sequence is idle no more and holds what was found for it.

        What the sequence held is remembered if that is worth it; if nobody is `running`, however large it is: nobody
        else waits for that.
        """
        del self._idle[place.seq]
        self._fresh.discard(place.seq)
        if not place.keeps_own:
            self._swap.swap_out(place.seq, alone=not running)
        elif self._loses_little(place.seq, place.n_shared):
            # What it goes on from lies in its cells again; of a client that comes back there are not to be many copies.
            self._swap.discard_copy(self._context.tokens(place.seq))
        if place.source is not None:
            self._context.share_prefix(place.source, place.seq, place.n_shared, max_bytes=SHARE_AT_MOST)
        elif place.swapped is not None:
            self._swap_in(place.seq, place.swapped, place.n_shared)
        self._swap.note(place.seq, place.recall)

    def give_back(self, seq: int) -> None:
        """`seq` is idle again, and the most recently used."""
        self._idle[seq] = self._step
        self._fresh.add(seq)

    def evict(self, n_cells: int) -> None:
        """Free at least `n_cells` cells, least recently used first, as far as there are any.

        The most recently used of those is remembered if that is worth it, the others not: nobody can be cancelled
        during a copy.
        """
        victims = list[int]()
        for seq in self._idle:
            if self._n_freed(victims) >= n_cells:
                break
            if self._context.n_committed(seq):
                victims.append(seq)
        for seq in victims:
            if seq != victims[-1] or not self._swap.swap_out(seq):
                self._context.drop_cells(seq)

    def _n_freed(self, seqs: Collection[int]) -> int:
        """Cells that are free without `seqs`: those that nobody else holds."""
        others = [seq for seq in range(self._context.n_seq_max) if seq not in seqs and self._context.n_committed(seq)]
        return self._context.n_cells_used - self._context.n_cells_of(others)

    def tend(self, running: Collection[int]) -> None:
        """Before each step: free cells that nobody has wanted for a while. One prefix's, or the step would wait long.

        Of divided cells none: those are in nobody's way yet, and nobody can be cancelled during a copy. What is
        too long for a copy stays: it would take long to compute again.
        """
        self._step += 1
        if not self._swap.limit or not self._context.kv_unified:
            return
        old = (seq for seq, since in self._idle.items() if self._step - since > SWAP_AFTER)
        seq = next((seq for seq in old if self._context.n_committed(seq)), None)
        if seq is not None and (self._is_shared(seq, running) or not self._swap.swap_out(seq)):
            self._idle[seq] = self._step  # later, perhaps

    def make_ready(self) -> bool:
        """While nobody runs or waits: copy a prefix that will be in somebody's way; False if there is none.

        Of divided cells that is what lies in the place of whoever comes next.
        """
        if not self._swap.limit:
            return False
        if not self._context.kv_unified:
            return self._swap.copy_ahead(self._spare(()))
        for seq in [seq for seq in self._idle if seq in self._fresh]:
            self._fresh.discard(seq)
            tokens = self._context.tokens(seq)
            # The choices of a request have its prompt in common, which need not be kept for each of them.
            if 2 * self._swap.n_known(tokens) < len(tokens) and self._swap.copy_ahead(seq):
                return True
        return False

    def _is_worth_sharing(self, seq: int, n_tokens: int) -> bool:
        """Of divided cells all that a sequence has would be copied, if that can be."""
        if self._context.kv_unified:
            return True
        return self._context.can_swap and self._context.n_committed(seq) <= COPIED_FOR_ONE * n_tokens

    def _is_shared(self, seq: int, running: Collection[int]) -> bool:
        """Whether somebody who runs needs most of its cells anyway: they may be the same cells."""
        lengths = self._context.common_prefixes([*self._context.tokens(seq), 0])
        return any(2 * lengths[other] > self._context.n_committed(seq) for other in running)

    def _spare(self, running: Collection[int]) -> int:
        """The idle sequence that a newcomer should have: an empty one, or the least recently used.

        Of divided cells one that is next to those who run, for only neighbours compute together, and what is in it can
        be remembered.
        """
        if self._context.kv_unified:
            return min(self._idle, key=self._emptiness)
        best_first = sorted(
            self._idle,
            key=lambda seq: (-_neighbours(seq, running), _spread(seq, running), *self._emptiness(seq)),
        )
        alone = not running
        return next((seq for seq in best_first if self._swap.can_remember(seq, alone=alone)), next(iter(self._idle)))

    def _emptiness(self, seq: int) -> tuple[bool, int]:
        """Sorts empty sequences first, in their order, and leaves the others in theirs."""
        return (True, 0) if self._context.n_committed(seq) else (False, seq)

    def _swap_in(self, seq: int, prefix: SwappedPrefix, n_tokens: int) -> None:
        self.evict(self._context.n_cells_used - self._n_freed([seq]) + prefix.n_tokens - self._context.n_cells)
        self._swap.swap_in(seq, prefix, n_tokens)
