"""Which choices compute, and what goes into the next step. Used by the engine thread only.

Choices are admitted into slots in the order of their requests' arrival. A step takes one token of every decoding
choice; the next ones take a chunk of the oldest prompts that are not yet computed; on a GPU an attention model's steps
take both. When cells run out the newest choice is preempted: it gives its slot back, keeps its tokens and its sampler,
and goes on later with the same output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, cast

from pyllmcancel.prefix_cache import PrefixCache, PrefixMatch
from pyllmcancel.step import MOST_DESCRIBED, StepItem
from pyllmcancel.step_cost import TILE, StepCostModel, chunk_size, with_tail

if TYPE_CHECKING:
    from pyllmcancel._native import CancelFlag, Context
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.request import Choice, Request

HEADROOM = 16  # cells a newcomer leaves free for each running choice, so that it is not preempted at once


class Occupancy(NamedTuple):
    """What is in use: slots, cells of running choices and of idle prefixes, bytes of copies of either's memory.

    Cells that several hold count once, and as a running choice's if one of them is.
    """

    slots: int = 0
    cells: int = 0
    idle_cells: int = 0
    checkpoint_bytes: int = 0
    swapped_bytes: int = 0


class Capacity(NamedTuple):
    """What there is: slots, and cells."""

    slots: int
    cells: int


class Gap(NamedTuple):
    """What prompts took since those who decode had their turn: tokens, and the seconds that were foreseen for them."""

    n_tokens: int = 0
    seconds: float = 0.0


class Scheduler:
    """Slots, cells and steps."""

    def __init__(self, context: Context, config: EngineConfig) -> None:
        self._context = context
        self._config = config
        self._on_cpu = config.n_gpu_layers == 0 or not context.can_offload
        self.cost = StepCostModel()
        self._cache = PrefixCache(context, swap_bytes=config.swap_bytes() if self._on_cpu else 0)
        self._slots = min(config.parallel, context.n_seq_max)
        # Choices of running requests that hold no slot: not admitted yet, or preempted. Oldest first.
        self._pending: deque[Choice] = deque()
        # Choices that neither hold a slot nor wait for one, until they are resumed. A dict keeps the order.
        self._paused: dict[Choice, None] = {}
        # By seq_id, in the order of admission.
        self._active: dict[int, Choice] = {}
        # Sequences of a failed step, each to be computed alone until it has shown whether it is the one at fault.
        self._suspects: deque[int] = deque()
        # On a GPU a step's tokens are free as long as they fit. llama.cpp's CPU attention computes a prompt in tiles of
        # tokens by cells, and skips those in which nobody looks at anything: with decodes in its tile, a prompt would
        # pay for the cells of all of them. Recurrent and hybrid memories: an abort would harm everyone in the batch.
        # Divided cells, too: prompts of different lengths, and decodes, would be several ubatches.
        self._prompts_alone = context.memory_kind != "attention" or not context.kv_unified
        self._mixes = not self._prompts_alone and not self._on_cpu
        # As it will be after the step that is planned, and as it was before, should that step not count.
        self._gap = self._gap_before = Gap()
        # Fewer than the slots after llama.cpp found no room although cells were counted as free; until a choice ends.
        self._most_active = self._slots
        self.n_preempted = 0

    @property
    def active(self) -> list[Choice]:
        return list(self._active.values())

    @property
    def busy(self) -> bool:
        return bool(self._active or self._pending)

    @property
    def n_free_slots(self) -> int:
        return self._slots - len(self._active)

    def occupancy(self) -> Occupancy:
        idle = self._cache.n_cells
        used = self._context.n_cells_used
        copies = self._context.checkpoint_bytes, self._cache.swapped_bytes
        return Occupancy(len(self._active), used - idle, idle, *copies)

    def add(self, request: Request) -> None:
        """Take over a request that has left the queue. Only the leaders of its choices start at once."""
        self._pending.extend(choice for choice in request.choices if choice.leads)

    def choice(self, seq: int) -> Choice:
        return self._active[seq]

    def holds(self, seq: int) -> bool:
        """Whether a choice computes in `seq`."""
        return seq in self._active

    def prompt_computed(self, leader: Choice) -> None:
        """A leader got its first token: its siblings can share its prompt's cells. They are next in line."""
        for sibling in leader.siblings:
            sibling.prompt_logprobs = list(leader.prompt_logprobs)
        self._pending.extendleft(reversed(leader.siblings))

    def has_room_for(self, choice: Choice) -> bool:
        """Whether a choice can start now, with nobody waiting before it."""
        return not self._pending and self._fits(choice)

    def admit(self) -> list[Choice]:
        """Open pending choices as long as there are slots and cells; returns those admitted."""
        admitted = []
        while self._pending and self._fits(self._pending[0]):
            choice = self._pending.popleft()
            self._open(choice)
            admitted.append(choice)
        return admitted

    def plan(self) -> list[StepItem]:
        """The next step's items; empty when nothing is running. May preempt."""
        items = self._items()
        while items and not self._make_room(sum(item.n_tokens for item in items)):
            self._preempt(self.active[-1])
            items = self._items()
        self._note_prefill(items)
        return items

    def maintain(self) -> None:
        """Before a step, when nobody waits to be told anything: it may take some milliseconds."""
        self._cache.maintain(self._active)

    def maintain_idle(self) -> bool:
        """While nobody runs or waits: do some of what the next one would have to wait for; False if nothing is left."""
        return self._cache.maintain_idle()

    def release(self, choice: Choice, *, keep: bool = True) -> None:
        """Take an ended choice out, wherever it is. With `keep` its cells become an idle prefix."""
        if choice.seq is None:
            self._paused.pop(choice, None)
            if choice in self._pending:
                self._pending.remove(choice)
            return
        self._give_up_slot(choice, keep=keep)
        self._most_active = self._slots

    def pause(self, choices: Iterable[Choice]) -> None:
        """Take slots back until `resume`, and keep the cells as idle prefixes; pending choices wait for it too.

        Siblings that have not started yet are not paused: they start when their leader has computed the prompt.
        Idempotent.
        """
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

    def resync(self, items: list[StepItem]) -> None:
        """After a step that did not count: take over what the context says is still true."""
        for item in items:
            choice = self._active[item.seq]
            choice.n_committed = self._context.n_committed(item.seq)
            if choice.n_described:
                del choice.prompt_logprobs[choice.n_committed :]  # what is computed again is described again
        self._gap = self._gap_before

    def suspect(self, seqs: Iterable[int]) -> None:
        self._suspects = deque(seqs)

    def preempt_newest(self) -> bool:
        """Make room after llama.cpp found none: idle prefixes go first, then the newest choice.

        Returns False if there is one choice left, and nothing but its own cells.
        """
        self._gap = self._gap_before
        if self._cache.n_cells:
            self._cache.evict(self._context.n_cells)
            return True
        if len(self._active) < 2:
            return False
        self._preempt(self.active[-1])
        # By our own count there may be room for it, and it would be back in the next turn.
        self._most_active = len(self._active)
        return True

    def _fits(self, choice: Choice) -> bool:
        if not self.n_free_slots or not len(self._cache):
            return False
        if not self._active:
            return True
        if len(self._active) >= self._most_active:
            return False
        if not self._context.kv_unified:
            return True
        held = self._context.n_cells_of(list(self._active))
        wanted = sum(running.n_pending + HEADROOM for running in self._active.values())
        room = self._context.n_cells - held - wanted
        return choice.n_known < room or choice.n_known - self._n_shared(choice) < room

    def _n_shared(self, choice: Choice) -> int:
        """Cells that a choice would share with who runs, if it started now."""
        found = self._find(choice)
        return found.n_shared if found.source in self._active else 0

    def _find(self, choice: Choice) -> PrefixMatch:
        """Where a choice had best start; one that is described, or starts afresh, has nothing to find."""
        whole = choice.n_described or self._recomputes_all(choice)
        return self._cache.find([] if whole else [*choice.prompt, *choice.generated], self._active)

    @staticmethod
    def _recomputes_all(choice: Choice) -> bool:
        """A prompt that is to be computed whole is so once: by its leader, when it is first admitted."""
        return not choice.request.params.reuse_prefix and choice.leads and not choice.admitted_before

    def _open(self, choice: Choice) -> None:
        tokens = [*choice.prompt, *choice.generated]
        n_described, afresh = choice.n_described, self._recomputes_all(choice)
        found = self._find(choice)
        self._cache.take(found, self._active)
        flag = cast("CancelFlag", choice.request.cancellation.flag)
        if n_described:
            choice.prompt_logprobs.clear()  # a preempted prompt is described once more from its beginning
        choice.n_committed = self._context.open(
            found.seq, tokens, choice.sampler, flag, reuse=not afresh, n_described=n_described
        )
        if not choice.admitted_before:
            choice.n_cached = choice.n_committed
        choice.admitted_before = True
        choice.seq = found.seq
        self._active[found.seq] = choice

    def _items(self) -> list[StepItem]:
        while self._suspects:
            seq = self._suspects.popleft()
            if seq in self._active:
                return [self._item(seq, self._chunk(0))]
        # In the order of their numbers: of divided cells, neighbours compute together.
        decodes = [StepItem(seq, 1) for seq, choice in sorted(self._active.items()) if choice.n_pending == 1]
        prefills = [seq for seq, choice in self._active.items() if choice.n_pending > 1]
        if not prefills:
            return decodes
        chunk = self._chunk(len(decodes))
        if self._mixes:
            return decodes + self._chunks(prefills, chunk, n_taken=len(decodes))
        items = self._chunks(prefills[:1] if self._prompts_alone else prefills, chunk)
        if decodes and self._decodes_are_due(len(decodes), sum(item.n_tokens for item in items), chunk):
            return decodes
        return items

    def _decodes_are_due(self, n_decodes: int, n_tokens: int, chunk: int) -> bool:
        """Whether `n_tokens` of prompts are too many for the gap between two decode steps, in which there are others.

        Several short prompts may be in one: few rows decode at a high price, and each prompt makes for one more. But
        not more than a long prompt takes there, a `chunk`, nor than `itl_target` allows.
        """
        if not self._gap.n_tokens:
            return False
        seconds = self._gap.seconds + self.cost.of(n_tokens) + self.cost.of(n_decodes)
        return self._gap.n_tokens + n_tokens > min(TILE, chunk) or seconds > self._config.itl_target

    def _note_prefill(self, items: list[StepItem]) -> None:
        self._gap_before = self._gap
        n_tokens = sum(item.n_tokens for item in items if self._active[item.seq].n_pending > 1)
        n_before, seconds_before = self._gap
        self._gap = Gap(n_before + n_tokens, seconds_before + self.cost.of(n_tokens)) if n_tokens else Gap()

    def _chunks(self, prefills: list[int], chunk: int, *, n_taken: int = 0) -> list[StepItem]:
        """Parts of prompts, oldest first, for a step of `chunk` tokens in which `n_taken` are others'."""
        budget = max(1, chunk - n_taken)
        n_described, items = MOST_DESCRIBED, list[StepItem]()
        for seq in prefills:
            part = self._item(seq, budget, n_described=n_described, n_others=n_taken)
            if part.n_tokens > 0:
                items.append(part)
                n_taken += part.n_tokens
                budget -= part.n_tokens
                n_described -= part.n_tokens if self._active[seq].n_described else 0
        return items

    def _item(self, seq: int, budget: int, *, n_described: int = MOST_DESCRIBED, n_others: int = 0) -> StepItem:
        choice = self._active[seq]
        if choice.n_described:
            return StepItem(seq, min(budget, choice.n_pending, n_described))
        return StepItem(seq, with_tail(budget, choice.n_pending, n_others=n_others, n_batch=self._context.n_batch))

    def _chunk(self, n_decodes: int) -> int:
        return chunk_size(
            self.cost,
            n_decodes=n_decodes,
            mixed=self._mixes,
            tiled=self._on_cpu,
            n_batch=self._context.n_batch,
            itl_target=self._config.itl_target,
            max_step=self._config.max_step_seconds,
        )

    def _make_room(self, n_tokens: int) -> bool:
        """Have `n_tokens` free cells, from idle prefixes if need be; False if running choices hold too many."""
        missing = self._context.n_cells_used + n_tokens - self._context.n_cells
        if missing > 0:
            self._cache.evict(missing)
            missing = self._context.n_cells_used + n_tokens - self._context.n_cells
        return missing <= 0 or len(self._active) < 2

    def _preempt(self, choice: Choice) -> None:
        self._give_up_slot(choice, keep=False)
        self._pending.appendleft(choice)
        self.n_preempted += 1

    def _give_up_slot(self, choice: Choice, *, keep: bool) -> None:
        assert choice.seq is not None
        seq, choice.seq = choice.seq, None
        del self._active[seq]
        self._context.close(seq, keep=keep)
        self._cache.give_back(seq)
