"""The assignment of slots and cells to choices. Used by the engine thread only.

Choices start in the order of their requests' arrival. With several owners or priorities the order is that of
`fair_share`, which also decides which running choice loses its slot. A preempted choice keeps its tokens and its
sampler, and goes on later with the same output. Choices are also preempted when cells run out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from pyllmcancel.scheduling.fair_share import FairShare
from pyllmcancel.scheduling.named_slots import NOTHING, Left, NamedSlots, number_of
from pyllmcancel.scheduling.neighbours import GraphDebt, Move, best_move, bytes_of_graph, runs_of
from pyllmcancel.scheduling.prefix_cache import PrefixCache, PrefixMatch
from pyllmcancel.scheduling.step_planner import StepPlanner
from pyllmcancel.scheduling.swap_space import MAX_COPIED_BYTES, Fetched, Holder

if TYPE_CHECKING:
    from pyllmcancel._native import CancelFlag, Context
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.requests.request import Choice, Request
    from pyllmcancel.scheduling.disk_floor import DiskFloor
    from pyllmcancel.step import StepItem

HEADROOM = 16  # cells that a starting choice leaves free for each running one, so that none is preempted at once


class Occupancy(NamedTuple):
    """The slots, cells of running choices and of idle prefixes, and bytes of checkpoints and swapped prefixes in use.

    Shared cells count once, and as a running choice's if a running choice is among the sequences that share them.
    """

    slots: int = 0
    cells: int = 0
    idle_cells: int = 0
    checkpoint_bytes: int = 0
    swapped_bytes: int = 0


class Capacity(NamedTuple):
    """The slots and cells that there are."""

    slots: int
    cells: int


class Scheduler:
    """Gives slots to choices and takes them back; `StepPlanner` plans their steps."""

    def __init__(self, context: Context, config: EngineConfig, disk: DiskFloor | None = None) -> None:
        self._context = context
        self._disk = disk
        self._named = NamedSlots() if config.named_slots else None
        on_cpu = not context.is_offloaded
        self.shares = FairShare()
        self._planner = StepPlanner(context, config, self.shares, on_cpu=on_cpu)
        self.cost = self._planner.cost
        self.cache = PrefixCache(context, swap_bytes=config.swap_bytes() if on_cpu else 0, disk=disk)
        self.debt = GraphDebt(bytes_of_graph(context.model.size, on_cpu=on_cpu))
        # A copy takes no longer than a graph, or than one for a new request.
        self._most_moved = max(MAX_COPIED_BYTES, self.debt.bytes_of_graph)
        # Where clients name slots, a choice stays in the one that its answer has named.
        self.gathers = not context.kv_unified and context.can_swap and self._named is None
        self._slots = min(config.parallel, context.n_seq_max)
        # Choices of running requests that wait for a slot (not started yet, preempted, or resumed), the next one first.
        self._pending: deque[Choice] = deque()
        # Leaders of the requests that waited in the queue at the last look: a pending choice may not overtake the next.
        self._heads: list[Choice] = []
        # Choices that neither hold a slot nor wait for one, until they are resumed. A dict keeps the order.
        self._paused: dict[Choice, None] = {}
        # By seq_id, in the order of admission.
        self._active: dict[int, Choice] = {}
        # Fewer than the slots after llama.cpp found no room although cells were counted as free; until a choice ends.
        self._most_active = self._slots
        self.n_preempted = 0
        self.n_moved = 0

    @property
    def active(self) -> list[Choice]:
        return list(self._active.values())

    @property
    def _computes_idle(self) -> bool:
        """True if idle requests compute; they do so alone."""
        return any(choice.request.is_idle for choice in self._active.values())

    def occupancy(self) -> Occupancy:
        idle, copies = self.cache.n_cells, (self._context.checkpoint_bytes, self.cache.swapped_bytes)
        return Occupancy(len(self._active), self._context.n_cells_used - idle, idle, *copies)

    def add(self, request: Request) -> None:
        """Take over a request that has left the queue. Its leaders wait for slots, their siblings for the leaders."""
        self._pending.extend(choice for choice in request.choices if choice.leads)

    def fetch(self, request: Request) -> bool:
        """Begin to read prefixes of a request from the disk, where files give clearly more than is at hand.

        Until they are read, the request's choices wait for no slot. Returns False if there are no such files.
        """
        if self._disk is None:
            return False
        room = min(self._context.n_ctx, self._context.n_cells)
        for choice in request.choices:
            if self._disk.n_fetches >= self._slots:
                break  # what is read takes memory until its choice starts
            if choice.leads and not choice.n_described and not self._recomputes_all(choice):
                tokens, holder = choice.tokens, holder_of(choice)
                self._disk.fetch(choice, tokens, self.cache.n_at_hand(tokens, holder), room, holder)
        if not self.is_fetching(request):
            return False
        self._set_aside(request.choices)
        return True

    def is_fetching(self, request: Request) -> bool:
        return self._disk is not None and any(self._disk.is_reading(choice) for choice in request.choices)

    def choice(self, seq: int) -> Choice:
        return self._active[seq]

    def holds(self, seq: int) -> bool:
        """Return whether a choice computes in `seq`."""
        return seq in self._active

    def prompt_computed(self, leader: Choice) -> None:
        """Note that a leader got its first token. Its siblings, which can share its prompt's cells now, are next."""
        for sibling in leader.siblings:
            sibling.prompt_logprobs = list(leader.prompt_logprobs)
        self._pending.extendleft(reversed(leader.siblings))

    def choose(self, heads: Sequence[Request]) -> Request | None:
        """Return which of these waiting requests, the next one of each owner, starts now; None if a pending choice is
        next, or has to wait.

        Called with the registry's lock held, so it must be quick. `Generation.start` follows for the returned request,
        unless that request is cancelled in between.
        """
        leaders = {request.choices[0]: request for request in heads}
        if self._disk is not None and self._disk.n_fetches >= max(1, self._slots - len(self._active)):
            # Prefixes that are read take memory. The choices for which it was read may overtake the waiting ones.
            self._heads = []
            return None
        choice = self.shares.next_start([*self._pending, *leaders], self.active)
        starts = choice in leaders and self._to_preempt_for(choice) is not None
        self._heads = [] if starts else list(leaders)
        return leaders[choice] if choice is not None and starts else None

    def start_pending(self, most: int | None = None) -> list[Choice]:
        """Start at most `most` pending choices, as long as there is room or others give way; return those started."""
        started: list[Choice] = []
        while most is None or len(started) < most:
            choice = self.shares.next_start([*self._pending, *self._heads], self.active)
            if choice is None or choice not in self._pending:
                break
            preempted = self._to_preempt_for(choice)
            if preempted is None:
                break
            for other in preempted:
                self._preempt(other, keep=True)
            self._pending.remove(choice)
            self._open(choice)
            self.shares.note_start(choice)
            started.append(choice)
        self._heads = []
        return started

    def gather(self) -> Choice | None:
        """Move a decoding choice, if running choices are not neighbours and that has cost enough; return the choice."""
        if not self.gathers or self._computes_idle:
            return None
        if len(runs_of(self._active)) < 2:
            self.debt.clear()
            return None
        # Suspects of a failed step are known by their numbers.
        moved = None if self._planner.isolates else self._due_move()
        if moved is None or not self.cache.move(*moved, self._most_moved):
            return None
        choice = self._active[moved.seq]
        self._open_in(choice, moved.target, n_reusable=choice.n_committed)
        # The order of admission stays.
        self._active = {moved.target if seq == moved.seq else seq: one for seq, one in self._active.items()}
        self.n_moved += 1
        return choice

    def _due_move(self) -> Move | None:
        """Return the best move, if it is due."""
        lengths = {seq: one.n_committed for seq, one in self._active.items() if one.decodes and one.generated}
        if not lengths:
            return None
        seq, length = next(iter(lengths.items()))
        bytes_per_token = self._context.swap_bytes(seq) / length
        most = int(self._most_moved / bytes_per_token)
        idle = self.cache.lengths()
        move = best_move(self._active, at_most(most, lengths), at_most(most, idle))
        if move is None:
            self.debt.clear()
            return None
        price = bytes_per_token * (lengths[move.seq] + idle[move.target])
        return move if self.debt.covers(price) else None

    def plan(self) -> list[StepItem]:
        """Return the next step's items, empty when nothing is running. May preempt."""
        items = self._planner.plan(self._active)
        while items and not self._make_room(sum(item.n_tokens for item in items)):
            self._preempt(self.shares.first_to_go(self.active), keep=False)
            items = self._planner.plan(self._active)
        self._planner.note(items, self._active)
        self._note_graphs(items)
        return items

    def note_ahead(self, items: list[StepItem]) -> None:
        """Note that a decode step of these items, which are all active ones, has begun by itself."""
        self._note_graphs(items)
        self._planner.note_ahead([self._active[item.seq] for item in items])
        self.cache.note_step()

    def _note_graphs(self, items: list[StepItem]) -> None:
        if self.gathers and len(items) > 1 and not self._computes_idle:
            self.debt.note_step(len(runs_of(item.seq for item in items)))

    def maintain(self) -> None:
        """Do cache housekeeping before a step, after all events: it may take some milliseconds now and then."""
        self.cache.maintain(self._active)

    def maintain_idle(self) -> bool:
        """Do cache housekeeping while no request runs or waits; False if nothing is left to do."""
        return self.cache.maintain_idle()

    def release(self, choice: Choice, *, keep: bool = True) -> None:
        """Take out a choice that has ended, wherever it is. With `keep` its cells become an idle prefix."""
        if self._disk is not None:
            self._disk.drop(choice)
        if choice.seq is None:
            self._set_aside([choice])
            self._paused.pop(choice, None)
            return
        self._give_up_slot(choice, keep=keep, ends=True)
        self._most_active = self._slots

    def pause(self, choices: Iterable[Choice]) -> None:
        """Take slots back until `resume`, and keep the cells as idle prefixes; pending choices wait for it, too.

        Siblings that have not started yet are not paused: they start when their leader has computed the prompt. What
        was read from the disk for choices that have not started is forgotten, because new requests wait for its memory.
        Idempotent.
        """
        for choice in choices:
            if self._disk is not None:
                self._disk.drop(choice)
            self._set_aside([choice])

    def _set_aside(self, choices: Iterable[Choice]) -> None:
        for choice in choices:
            if choice.seq is not None:
                self._give_up_slot(choice, keep=True)
                self._most_active = self._slots
            elif choice in self._pending:
                self._pending.remove(choice)
            else:
                continue
            self._paused[choice] = None

    def resume(self, choices: Iterable[Choice]) -> None:
        """Have paused choices wait for slots again, before pending ones; they go on with the same output."""
        resumed = [choice for choice in choices if choice in self._paused]
        for choice in resumed:
            del self._paused[choice]
        self._pending.extendleft(reversed(resumed))

    def slot_is_busy(self, owner: str, number: int) -> bool:
        """Return whether a request of an owner's slot runs."""
        return any(
            choice.request.owner == owner and (seq if number_of(choice) is None else number_of(choice)) == number
            for seq, choice in self._active.items()
        )

    def copy_slot(self, owner: str, number: int) -> Fetched | None:
        """Copy the prefix of an owner's slot, of any size; None if the slot is empty."""
        left = self._left_in(owner, number)
        tokens, holder = left.tokens(), Holder(owner, adapted=left.adapted)
        prefix = self.cache.copy_of(tokens, holder) if tokens else None
        return None if prefix is None else Fetched(prefix, holder)

    def fill_slot(self, owner: str, number: int, copied: Fetched) -> bool:
        """Have an owner's slot hold a copied prefix; False, and the slot is empty, if there is no room."""
        assert self._named is not None
        adapted = copied.holder.adapted
        filled = self.cache.adopt(copied.prefix, self._active, Holder(owner, adapted=adapted))
        self._named.put(owner, number, copied.prefix.tokens if filled else (), adapted)
        return filled

    def erase_slot(self, owner: str, number: int) -> int:
        """Forget the prefix of an owner's slot, wherever it is kept; returns its number of tokens."""
        left = self._left_in(owner, number)
        tokens = left.tokens()
        if tokens and self._named is not None:
            self.cache.erase(tokens, Holder(owner, adapted=left.adapted))
            self._named.put(owner, number, ())
        return len(tokens)

    def _left_in(self, owner: str, number: int | None) -> Left:
        """Return what an owner's slot holds; nothing for no slot."""
        return NOTHING if self._named is None else self._named.get(owner, number)

    def resync(self, items: list[StepItem]) -> None:
        """Take over what the context has committed, after a step that did not count."""
        for item in items:
            choice = self._active.get(item.seq)
            if choice is None:
                continue  # the choice ended while the step was ahead
            choice.n_committed = self._context.n_committed(item.seq)
            if choice.n_described:
                del choice.prompt_logprobs[choice.n_committed :]  # tokens that are computed again are described again
        self._planner.undo()

    def suspect(self, seqs: Iterable[int]) -> None:
        """Compute each of these sequences of a failed step alone, next."""
        self._planner.suspect(seqs)

    def recover_from_no_room(self) -> bool:
        """Make room after llama.cpp found none: evict idle prefixes; without any, preempt the first to go.

        Returns False if there is one choice left, and nothing but its own cells.
        """
        self._planner.undo()
        if self.cache.n_cells:
            self.cache.evict(self._context.n_cells)
            return True
        if len(self._active) < 2:
            return False
        self._preempt(self.shares.first_to_go(self.active), keep=False)
        # By our own count there may be room for the choice, and it would start again in the next turn.
        self._most_active = len(self._active)
        return True

    def _to_preempt_for(self, choice: Choice) -> list[Choice] | None:
        """Return the running choices to preempt for `choice` to start; None, and none is preempted, if it cannot
        start.
        """
        preempted: list[Choice] = []
        running = self.active
        while not self._fits(choice, running):
            other = self.shares.preempted_for(choice, running)
            if other is None:
                return None
            running.remove(other)
            preempted.append(other)
        return preempted

    def _fits(self, choice: Choice, running: Sequence[Choice]) -> bool:
        """Return whether there are a slot and cells for `choice` beside these running ones. Idle requests leave a slot
        free, and other prefixes in their cells.
        """
        n_left_free = choice.request.is_idle and self._slots > 1
        has_slot = len(running) < min(self._slots - n_left_free, self._most_active)
        if not has_slot or (running and not self.cache.has_place(holder_of(choice))):
            return False
        if not running or not self._context.kv_unified:
            return True
        held = self._context.n_cells_of([cast("int", other.seq) for other in running])
        needed = sum(other.n_pending + HEADROOM for other in running)
        room = self._context.n_cells - held - needed
        return choice.n_known < room or choice.n_known - self._n_shared(choice, running) < room

    def _n_shared(self, choice: Choice, running: Sequence[Choice]) -> int:
        """Return the number of cells that `choice` would share with a running one, if it started now."""
        found = self._find(choice)
        return found.n_shared if any(other.seq == found.source for other in running) else 0

    def _find(self, choice: Choice) -> PrefixMatch:
        """Return the cached prefix that a choice starts from; none if its whole prompt is to be computed."""
        whole = choice.n_described or self._recomputes_all(choice)
        tokens = [] if whole else choice.tokens
        fetched = None if whole or self._disk is None else self._disk.fetched(choice)
        own = self._left_in(choice.request.owner, number_of(choice)).tokens() if tokens else ()
        return self.cache.find(tokens, self._active, holder_of(choice), fetched, own)

    @staticmethod
    def _recomputes_all(choice: Choice) -> bool:
        """Return whether to ignore the cache: the request said so, and this leader has not started before."""
        return not choice.request.params.reuse_prefix and choice.leads and not choice.admitted_before

    def _open(self, choice: Choice) -> None:
        n_described, afresh = choice.n_described, self._recomputes_all(choice)
        found = self._find(choice)
        n_usable = self.cache.take(found, self._active, holder_of(choice))
        if n_described:
            choice.prompt_logprobs.clear()  # after a preemption the prompt is described from its beginning again
        self._open_in(choice, found.seq, n_reusable=0 if afresh else min(n_usable, choice.n_known))
        if not choice.admitted_before:
            choice.n_cached = min(choice.n_committed, len(choice.prompt))
        if self._disk is not None:
            self._disk.drop(choice)
        choice.admitted_before = True
        self._active[found.seq] = choice

    def _open_in(self, choice: Choice, seq: int, *, n_reusable: int) -> None:
        """Have `choice` compute in the idle `seq`, with at most `n_reusable` of its tokens there."""
        flag = cast("CancelFlag", choice.request.cancellation.flag)
        choice.n_committed = self._context.open(
            seq,
            choice.tokens,
            choice.sampler,
            flag,
            n_reusable=n_reusable,
            n_described=choice.n_described,
            adapters=choice.adapted.scales,
            adapted_from=choice.adapted.begin if choice.adapted.scales else 0,
            media=choice.media,
        )
        choice.seq = seq

    def _make_room(self, n_tokens: int) -> bool:
        """Make `n_tokens` cells free, by eviction if need be; False if running choices hold too many."""
        missing = self._context.n_cells_used + n_tokens - self._context.n_cells
        if missing > 0:
            self.cache.evict(missing, of_idle=self._computes_idle and len(self._active) > 1)
            missing = self._context.n_cells_used + n_tokens - self._context.n_cells
        return missing <= 0 or len(self._active) < 2

    def _preempt(self, choice: Choice, *, keep: bool) -> None:
        """Take the slot of a running choice back. With `keep` its cells stay as an idle prefix, as long as possible."""
        self._give_up_slot(choice, keep=keep)
        self._pending.appendleft(choice)
        self.n_preempted += 1

    def _give_up_slot(self, choice: Choice, *, keep: bool, ends: bool = False) -> None:
        assert choice.seq is not None
        seq, choice.seq = choice.seq, None
        del self._active[seq]
        self._context.close(seq, keep=keep)
        if self._named is not None:
            self._named.note(choice, seq, self._context.n_committed(seq))
        self.cache.give_back(seq, spent=ends and holder_of(choice).idle)


def at_most(limit: int, lengths: Mapping[int, int]) -> dict[int, int]:
    """Return those of `lengths` that are not above `limit`."""
    return {seq: length for seq, length in lengths.items() if length <= limit}


def holder_of(choice: Choice) -> Holder:
    request = choice.request
    # A prompt that is computed ahead is kept as the one that it is computed for.
    idle = request.is_idle and (choice.max_tokens > 0 or request.params.prompt_logprobs)
    return Holder(request.owner, request.group is not None, choice.adapted, idle)
