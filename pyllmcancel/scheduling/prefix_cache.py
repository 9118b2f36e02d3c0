"""The prefix cache. It chooses the idle prefix that a new choice starts from, and the prefixes to evict or swap out.

An ended sequence keeps its cells: they are an idle prefix, which a later request may start from. Idle prefixes leave
their cells, the least recently used first. If the context can copy cells, they go into plain memory, up to a limit in
bytes.

Unified cells: attention walks over all cells in use and divides the walk among the threads, so idle cells slow down
every step. A prefix that stays idle for some steps is swapped out. Divided cells: an idle prefix costs a step nothing,
but it occupies a slot; it is swapped out when a new choice takes that slot. While nothing runs, prefixes are copied
ahead and stay in their cells, so that neither a new request nor one that continues the prefix waits for a copy.

A prefix is reused by its owner's choices only, whether it is running, idle or swapped out. Otherwise the number of
cached tokens, and the time to the first one, would reveal the prompts of other owners. Of its tokens, those are reused
that the same LoRA adapters have computed: `Holder.n_usable` decides both. The owner that holds the most
cells loses its prefixes first, so that a flood of one owner's requests costs another owner no prefix. Within an owner,
prefixes of sessions are kept longer than others. Those of ended idle requests are spent: they go before all others,
without a copy. An idle request takes the place of others' prefixes only where these can be copied, or where there is no
other place.

Used by the engine thread only.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pyllmcancel.scheduling.swap_space import (
    MAX_COPIED_PER_REUSED,
    MIN_SHARED_TOKENS,
    NO_HOLDER,
    Holder,
    SwapSpace,
    first_to_forget,
)

if TYPE_CHECKING:
    from pyllmcancel._native import Context, SwappedPrefix
    from pyllmcancel.scheduling.disk_floor import DiskFloor
    from pyllmcancel.scheduling.swap_space import Fetched

SWAP_AFTER_STEPS = 8  # a client that continues at once finds its prefix in cells
# The limit of one prefix, for a request that would otherwise compute it. A cancel waits until the copy is done.
MAX_SHARED_BYTES = 1 << 30
# The limit of one prefix that is copied for the disk, while nothing runs: a request that comes meanwhile waits for it.
MAX_SAVED_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The sequence that a choice opens in, and the prefix that it starts from.

    `seq` gets `n_shared` leading cells of sequence `source`, or of a `swapped` prefix. With neither, `seq` holds the
    cells itself.
    """

    seq: int
    source: int | None = None
    n_shared: int = 0
    swapped: SwappedPrefix | None = None

    @property
    def keeps_own(self) -> bool:
        """True if the choice continues what `seq` holds."""
        return self.n_shared > 0 and self.source is None and self.swapped is None


@dataclass(slots=True)
class Idle:
    """The state of an idle sequence, at which `maintain_idle` looks once: if the limit in bytes is smaller than all
    prefixes, it would otherwise copy for ever.
    """

    since: int  # the step from which SWAP_AFTER_STEPS counts
    fresh: bool = True  # no copy of it was considered yet
    unsaved: bool = True  # the same for the disk
    spent: bool = False  # no request is expected to continue it


def _neighbours(seq: int, running: Collection[int]) -> int:
    return (seq - 1 in running) + (seq + 1 in running)


def _extent(seq: int, running: Collection[int]) -> int:
    """Return the distance from the first to the last sequence of a step that includes `seq`."""
    return max(seq, *running) - min(seq, *running) if running else 0


class PrefixCache:
    """Idle prefixes: in sequences, least recently used first, up to `swap_bytes` bytes of them in plain memory, and on
    `disk`.
    """

    def __init__(self, context: Context, *, swap_bytes: int = 0, disk: DiskFloor | None = None) -> None:
        self._context = context
        self._swap = SwapSpace(context, swap_bytes)
        self._disk = disk
        self._step = 0
        # The step in which `maintain` has a prefix to look at, if no sequence becomes idle before.
        self._due: float = inf
        self._idle = {seq: Idle(0) for seq in range(context.n_seq_max)}  # by sequence, least recently used first
        # By sequence: the holder of the tokens that it holds, or held last.
        self._holders = [NO_HOLDER] * context.n_seq_max

    @property
    def n_cells(self) -> int:
        """The number of cells that only idle prefixes hold."""
        running = [seq for seq in range(self._context.n_seq_max) if seq not in self._idle]
        return self._context.n_cells_used - self._context.n_cells_of(running)

    @property
    def swapped_bytes(self) -> int:
        return self._swap.n_bytes

    def n_at_hand(self, tokens: Sequence[int], holder: Holder) -> int:
        """Return the limit of what cells and copies in plain memory can give a prompt."""
        return max(*self._common_prefixes(tokens, holder), self._swap.n_copied(tokens, holder))

    def find(
        self,
        tokens: Sequence[int],
        running: Collection[int],
        holder: Holder = NO_HOLDER,
        fetched: Fetched | None = None,
        own: Sequence[int] = (),
    ) -> PrefixMatch:
        """Return the best match for a prompt of `holder`; there must be an idle sequence.

        A prefix was `fetched` from the disk for this prompt. The prompt continues its `own` prefix, however little it
        has in common with it, if nothing else has more.
        """
        target = self._free_target(running, holder)
        lengths = self._common_prefixes(tokens, holder)
        found, n_tokens = self._find_in_cells(lengths, running, target, holder)
        # Idle prefixes can be evicted for a swapped one, running ones cannot.
        room = self._context.n_cells - (self._context.n_cells_used - self.n_cells)
        swapped, n_swapped = self._swap.find(tokens, n_tokens, min(room, self._context.n_ctx), holder, fetched)
        if swapped is not None:
            return PrefixMatch(target, None, n_swapped, swapped)
        seq = self._idle_with(own, holder)
        return found if seq is None or lengths[seq] <= n_tokens else PrefixMatch(seq, None, lengths[seq])

    def _idle_with(self, tokens: Sequence[int], holder: Holder) -> int | None:
        """Return the idle sequence that holds exactly `tokens`, of this owner; None if there is none."""
        lengths = self._common_prefixes([*tokens, 0], holder) if tokens else []
        idle = (seq for seq in self._idle if lengths and lengths[seq] == len(tokens) == self._context.n_committed(seq))
        return next(idle, None)

    def copy_of(self, tokens: Sequence[int], holder: Holder) -> SwappedPrefix | None:
        """Return a copy of the prefix that is exactly `tokens`, of any size; None if it is kept nowhere in memory."""
        seq = self._idle_with(tokens, holder)
        return self._swap.copy_of(tokens, holder) if seq is None else self._context.copy_out(seq, max_bytes=sys.maxsize)

    def adopt(self, prefix: SwappedPrefix, running: Collection[int], holder: Holder) -> bool:
        """Have an idle sequence hold a copied prefix; False if none is idle, or if there is no room."""
        if not self._idle or prefix.n_tokens > self._context.n_ctx:
            return False
        seq = self._free_target(running, holder)
        self.take(PrefixMatch(seq, None, prefix.n_tokens, prefix), running, holder)
        self.give_back(seq)
        return self._context.n_committed(seq) == prefix.n_tokens

    def erase(self, tokens: Sequence[int], holder: Holder) -> None:
        """Forget the prefix that is exactly `tokens` wherever it is kept, and prefixes of it."""
        for seq in self._idle:
            held = self._context.tokens(seq)
            if held and self._holders[seq].owner == holder.owner and held == list(tokens[: len(held)]):
                self._context.drop_cells(seq)
        self._swap.erase(tokens, holder)
        if self._disk is not None:
            self._disk.erase(tokens, holder)

    def _common_prefixes(self, tokens: Sequence[int], holder: Holder) -> list[int]:
        """Return, for every sequence, how many leading `tokens` its cells could give to a choice of `holder`."""
        limits = [holder.n_usable(other) for other in self._holders]
        # A memory that cannot go back anywhere gives fewer tokens than the limit.
        usable = set(limits) - {0}
        lengths = {most: self._context.common_prefixes(tokens, most=min(most, len(tokens))) for most in usable}
        return [lengths[most][seq] if most else 0 for seq, most in enumerate(limits)]

    def _find_in_cells(
        self, lengths: Sequence[int], running: Collection[int], target: int, holder: Holder
    ) -> tuple[PrefixMatch, int]:
        """Return the best match in cells, by what each sequence could give, and how many tokens it gives.

        The longest prefix wins. It is shared into `target`, rather than continued where it lies, if it belongs to a
        running sequence, or to others than an idle `holder`; if continuing it would discard more than it reuses; or if
        its sequence would compute alone.
        """
        usable = {seq: self._usable(seq, lengths[seq]) for seq in reversed(self._idle)}
        best_idle = max(usable, key=usable.__getitem__)
        n_tokens = usable[best_idle]
        sources = [seq for seq in running if self._can_share(seq, lengths[seq])]
        best_running = max(sources, key=lambda seq: lengths[seq], default=None)
        if best_running is not None and lengths[best_running] >= max(n_tokens, 1) + MIN_SHARED_TOKENS:
            return PrefixMatch(target, best_running, lengths[best_running]), lengths[best_running]
        if n_tokens == 0:
            return PrefixMatch(target), 0
        if self._must_keep(best_idle, holder):
            shares = target != best_idle and self._can_share(best_idle, n_tokens)
            return (PrefixMatch(target, best_idle, n_tokens), n_tokens) if shares else (PrefixMatch(target), 0)
        is_free = target != best_idle and not self._context.n_committed(target)
        shares = is_free and not self._keeps_half(best_idle, n_tokens)
        if shares or self._computes_alone(best_idle, target, running):
            return PrefixMatch(target, best_idle, n_tokens), n_tokens
        return PrefixMatch(best_idle, None, n_tokens), n_tokens

    def _must_keep(self, seq: int, holder: Holder) -> bool:
        """Return whether a choice of `holder` has to leave to others what an idle `seq` holds."""
        return holder.idle and not self._holders[seq].idle and self._context.n_committed(seq) > 0

    def has_place(self, holder: Holder) -> bool:
        """Return whether one more choice of `holder` would cost others no prefix."""
        others = [seq for seq in self._idle if self._must_keep(seq, holder)]
        return self._swap.limit > 0 or not others or len(others) < len(self._idle)

    def _usable(self, seq: int, n_tokens: int) -> int:
        """Return how many of the `n_tokens` in common to reuse: none if reuse would discard, or copy, too many other
        tokens.
        """
        if self._keeps_half(seq, n_tokens):
            return n_tokens
        return n_tokens if n_tokens >= MIN_SHARED_TOKENS and self._can_share(seq, n_tokens) else 0

    def _keeps_half(self, seq: int, n_tokens: int) -> bool:
        """Return whether a choice reuses at least as many tokens as it discards.

        The choice continues `seq` after `n_tokens`.
        """
        return self._context.n_committed(seq) <= 2 * n_tokens

    def _computes_alone(self, seq: int, target: int, running: Collection[int]) -> bool:
        """Return whether in `seq`, and not in `target`, the choice would compute alone, and moving it is cheap.

        With divided cells only sequences with adjacent numbers share a ubatch.
        """
        if self._context.kv_unified or _neighbours(seq, running) or not _neighbours(target, running):
            return False
        return (
            self._context.can_swap
            and self._swap.can_copy_beside_others(seq)
            and self._swap.can_copy(target, alone=False)
        )

    def take(self, found: PrefixMatch, running: Collection[int], holder: Holder = NO_HOLDER) -> int:
        """Prepare `found.seq` for a choice of `holder`: it is no longer idle, and holds the prefix that was found.

        Its former content is swapped out. If nothing is `running`, the size of that content does not matter, because no
        other request waits. Returns the limit of leading tokens that the choice may reuse of what the sequence holds
        now: the prefix, or what is left of the former content.
        """
        n_usable = found.n_shared if found.keeps_own else holder.n_usable(self._holders[found.seq])
        was = self._idle.pop(found.seq)
        if not found.keeps_own and not was.spent:
            alone = not running and not holder.idle
            self._swap.swap_out(found.seq, self._holders[found.seq], alone=alone)
        elif self._keeps_half(found.seq, found.n_shared):
            # The cells hold all tokens of the copy. A conversation needs one copy, not one for each turn.
            self._swap.discard(self._swap.copy_of(self._context.tokens(found.seq), self._holders[found.seq]))
        self._holders[found.seq] = holder
        if found.source is not None:
            if self._context.share_prefix(found.source, found.seq, found.n_shared, max_bytes=MAX_SHARED_BYTES):
                n_usable = found.n_shared
        elif found.swapped is not None:
            self._swap_in(found.seq, found.swapped, found.n_shared)
            n_usable = found.n_shared
        return n_usable

    def lengths(self) -> dict[int, int]:
        """Return, by idle sequence, the number of tokens that it holds."""
        return {seq: self._context.n_committed(seq) for seq in self._idle}

    def move(self, seq: int, target: int, n_bytes: int) -> bool:
        """Move a running sequence, all of whose cells are committed, into the place of the idle `target`.

        What `target` holds moves to `seq`, which is closed, and idle then. `target` is to be opened. False, and no
        change, if copies of at most `n_bytes` each do not suffice, or if there is no memory for them.
        """
        displaced = self._context.copy_out(target, max_bytes=n_bytes) if self._context.n_committed(target) else None
        if displaced is None and self._context.n_committed(target):
            return False
        if not self._context.share_prefix(seq, target, self._context.n_committed(seq), max_bytes=n_bytes):
            if displaced is not None:
                self._context.swap_in(target, displaced)
            return False
        self._context.close(seq, keep=False)
        if displaced is not None:
            self._context.swap_in(seq, displaced)
        self._holders[seq], self._holders[target] = self._holders[target], self._holders[seq]
        self._idle = {seq if one == target else one: idle for one, idle in self._idle.items()}
        return True

    def give_back(self, seq: int, *, spent: bool = False) -> None:
        """Make `seq` idle again, as the most recently used, or the first to forget."""
        self._idle[seq] = Idle(self._step, fresh=not spent, unsaved=not spent, spent=spent)

    def evict(self, n_cells: int, *, of_idle: bool = False) -> None:
        """Free at least `n_cells` cells, as far as idle prefixes hold them, in the order of `_eviction_order`; with
        `of_idle` those of idle requests only.

        The most recently used of the evicted prefixes is swapped out, the others are not: a cancel waits for a copy.
        """
        held = [seq for seq in self._eviction_order() if self._holders[seq].idle or not of_idle]
        n_evicted = bisect_left(range(len(held)), n_cells, key=lambda count: self._n_freed(held[:count]))
        evicted = held[:n_evicted]
        for seq in evicted:
            if seq != evicted[-1] or not self._swap.swap_out(seq, self._holders[seq]):
                self._context.drop_cells(seq)

    def _n_freed(self, seqs: Collection[int]) -> int:
        """Return the number of cells that become free without `seqs`: those that no other sequence shares."""
        evicted = set(seqs)
        others = [seq for seq in range(self._context.n_seq_max) if seq not in evicted]
        return self._context.n_cells_used - self._context.n_cells_of(others)

    def note_step(self) -> None:
        """Count a step, even one without `maintain`."""
        self._step += 1

    @property
    def maintenance_is_due(self) -> bool:
        """True if `maintain`, called now, would look at a prefix. Does not call the context."""
        return self._step + 1 >= self._due

    def maintain(self, running: Collection[int]) -> None:
        """Swap out a prefix that has been idle for SWAP_AFTER_STEPS; called before each step.

        One prefix at a time, because the step waits for the copy. With divided cells none, because there idle prefixes
        do not slow down steps. A prefix that is too large to copy stays, because computing it again would take long.
        """
        self._step += 1
        self._save_copy()
        if not self._swap.limit or not self._context.kv_unified:
            return
        held = [seq for seq in self._idle if self._context.n_committed(seq)]
        seq = next((seq for seq in held if self._step - self._idle[seq].since > SWAP_AFTER_STEPS), None)
        if seq is not None and not self._is_shared(seq, running) and self._swap.swap_out(seq, self._holders[seq]):
            held.remove(seq)
        elif seq is not None:
            self._idle[seq].since = self._step  # looked at again later
        self._due = min((self._idle[seq].since for seq in held), default=inf) + SWAP_AFTER_STEPS + 1

    def maintain_idle(self) -> bool:
        """Copy a prefix ahead of its eviction, or for the disk; called while nothing runs or waits. False if nothing is
        left to copy for now.
        """
        return self._copy_early() or self._save_copy() or self._save_one()

    @property
    def has_unsaved(self) -> bool:
        """True if the disk has not been offered every copy and every idle prefix."""
        return bool(self._swap.fresh) or any(idle.unsaved for idle in self._idle.values())

    def _save_copy(self) -> bool:
        """Have one of the copies in plain memory written to the disk, which costs this thread nothing."""
        while self._disk is not None and self._disk.is_free and (fresh := self._swap.next_fresh()) is not None:
            prefix, holder = fresh
            if self._disk.lacks(prefix.tokens, holder):
                self._disk.write(prefix, holder)
                return True
        return False

    def _save_one(self) -> bool:
        """Copy an idle prefix for the disk. One that has a copy in plain memory was looked at there."""
        for seq in [seq for seq, idle in self._idle.items() if idle.unsaved]:
            if self._disk is None or not self._disk.is_free:
                break
            self._idle[seq].unsaved = False
            tokens, holder = self._context.tokens(seq), self._holders[seq]
            if self._swap.copy_of(tokens, holder) is not None or not self._disk.lacks(tokens, holder):
                continue
            prefix = self._context.copy_out(seq, max_bytes=MAX_SAVED_BYTES)
            if prefix is not None:
                self._disk.write(prefix, holder)
                return True
        return False

    def _copy_early(self) -> bool:
        """Copy a prefix ahead of its eviction. With divided cells: the one in the sequence that the next request will
        take.
        """
        if not self._swap.limit or not self._idle:
            return False  # every sequence may wait for the encoding of a picture
        if not self._context.kv_unified:
            seq = self._free_target((), NO_HOLDER)
            return not self._idle[seq].spent and self._swap.copy_early(seq, self._holders[seq])
        for seq in [seq for seq, idle in self._idle.items() if idle.fresh]:
            self._idle[seq].fresh = False
            tokens, holder = self._context.tokens(seq), self._holders[seq]
            # The choices of one request share its prompt, for which one copy is enough.
            if 2 * self._swap.n_copied(tokens, holder) < len(tokens) and self._swap.copy_early(seq, holder):
                return True
        return False

    def _can_share(self, seq: int, n_tokens: int) -> bool:
        """Return whether `n_tokens` of `seq` can be given to another sequence: divided cells are copied as a whole."""
        if self._context.kv_unified:
            return True
        return self._context.can_swap and self._context.n_committed(seq) <= MAX_COPIED_PER_REUSED * n_tokens

    def _is_shared(self, seq: int, running: Collection[int]) -> bool:
        """Return whether a running sequence begins with most of the tokens of `seq`: the two may share those cells."""
        lengths = self._common_prefixes([*self._context.tokens(seq), 0], self._holders[seq])
        return any(2 * lengths[other] > self._context.n_committed(seq) for other in running)

    def _free_target(self, running: Collection[int], holder: Holder) -> int:
        """Return the idle sequence for a choice that continues none: an empty one, or the first to be evicted.

        With divided cells it lies beside running sequences, because only neighbours share a ubatch, and its content can
        be swapped out.
        """
        held = self._eviction_order()
        best_first = [*sorted(self._idle.keys() - set(held)), *held]
        if self._context.kv_unified:
            return best_first[0]
        best_first.sort(
            key=lambda seq: (self._must_keep(seq, holder), -_neighbours(seq, running), _extent(seq, running))
        )
        alone = not running
        return next(
            (seq for seq in best_first if self._swap.can_copy(seq, alone=alone)), held[0] if held else best_first[0]
        )

    def _eviction_order(self) -> list[int]:
        """Return the idle sequences that hold something, the first to forget first."""
        lengths = [self._context.n_committed(seq) for seq in range(self._context.n_seq_max)]
        held = [seq for seq in self._idle if lengths[seq]]
        of_owner = Counter[str]()
        for length, holder in zip(lengths, self._holders, strict=True):
            of_owner[holder.owner] += length
        spent = [seq for seq in held if self._idle[seq].spent]
        others = [seq for seq in held if not self._idle[seq].spent]
        holders = [holder._replace(idle=False) for holder in self._holders]
        return [*spent, *first_to_forget(others, holders.__getitem__, lengths.__getitem__, of_owner)]

    def _swap_in(self, seq: int, prefix: SwappedPrefix, n_tokens: int) -> None:
        self.evict(self._context.n_cells_used - self._n_freed([seq]) + prefix.n_tokens - self._context.n_cells)
        self._swap.swap_in(seq, prefix, n_tokens, keeps=self._holders[seq].idle)
