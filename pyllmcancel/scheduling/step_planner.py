"""The planner of the next step. Used by the engine thread only.

A step takes either one token of every decoding choice, or chunks of prompts, in the turns of `fair_share`. With divided
cells, and in recurrent and hybrid models, a step takes a chunk of one prompt only. On a GPU, an attention model's steps
with unified cells take both prompts and decodes.

All tokens of a step are computed with the same LoRA adapters. If running choices have several sets of adapters,
`AdapterOrder` says which is next, and the step has that set's choices only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from pyllmcancel.scheduling.step_cost import TILE, StepCostModel, chunk_size, even_part, with_tail
from pyllmcancel.step import MOST_EXTRA_OUTPUTS, StepItem

if TYPE_CHECKING:
    from pyllmcancel._native import Context
    from pyllmcancel.adapters import Scales
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.scheduling.fair_share import FairShare


class PrefillWork(NamedTuple):
    """Prompt tokens computed since the last decode step, and the seconds that were expected for them, of one set of
    adapters.
    """

    n_tokens: int = 0
    seconds: float = 0.0


class StepPlanner:
    """Sizes chunks of prompts by what steps have cost, and lets prompts and decodes take turns."""

    def __init__(self, context: Context, config: EngineConfig, shares: FairShare, *, on_cpu: bool) -> None:
        self._context = context
        self._config = config
        self._shares = shares
        self._adapters = AdapterOrder()
        self._on_cpu = on_cpu
        self.cost = StepCostModel()
        # Sequences of a failed step, each to be computed alone until the one that makes steps fail is known.
        self._suspects: deque[int] = deque()
        # On a GPU prompts and decodes share steps: tokens cost nothing as long as they fit. llama.cpp's CPU attention
        # computes a prompt in tiles of tokens by cells, and skips tiles in which no token attends to any cell: with
        # decodes in its tile, a prompt would pay for the cells of all of them. In recurrent and hybrid memories an
        # abort harms every sequence of the batch, so that a prompt computes alone. With divided cells too: prompts of
        # different lengths, and decodes, would be several ubatches.
        self._prompts_alone = context.memory_kind != "attention" or not context.kv_unified
        self._mixes = not self._prompts_alone and not self._on_cpu
        self._prefill: dict[Scales, PrefillWork] = {}  # by the adapters; replaced as a whole
        # All that a step changes, as it was before the last one, in case that step does not count.
        self._before = self._prefill, self._adapters.last, shares.last

    def suspect(self, seqs: Iterable[int]) -> None:
        """Compute each of these sequences of a failed step alone, next."""
        self._suspects = deque(seqs)

    @property
    def isolates(self) -> bool:
        """True if sequences of a failed step are to be computed alone."""
        return bool(self._suspects)

    def plan(self, active: Mapping[int, Choice]) -> list[StepItem]:
        """Return the next step's items, empty when nothing is running."""
        while self._suspects:
            seq = self._suspects.popleft()
            if seq in active and not active[seq].waits_for_encoding:
                return [self._item(active[seq], self._chunk(0, idle=active[seq].request.is_idle))]
        choices = self._adapters.choose([choice for choice in active.values() if not choice.waits_for_encoding])
        # Sorted by number: with divided cells only sequences with adjacent numbers share a ubatch.
        decodes = [StepItem(seq, 1) for seq in sorted(cast("int", one.seq) for one in choices if one.decodes)]
        prompts = self._shares.in_order(choice for choice in choices if not choice.decodes)
        if not prompts:
            return decodes
        # Decodes of other adapters wait for the step, too.
        n_waiting = sum(choice.decodes for choice in active.values())
        chunk = self._chunk(n_waiting, idle=prompts[0].request.is_idle)
        if self._mixes and prompts[0].next_media is None:
            return decodes + self._chunks(prompts, chunk, n_taken=len(decodes))
        items = self._chunks(prompts[:1] if self._prompts_alone else prompts, chunk, evenly=n_waiting > 0)
        n_tokens = sum(item.n_tokens for item in items)
        if decodes and self._decodes_are_due(choices[0].scales, len(decodes), n_tokens, chunk):
            return decodes
        return items

    def _decodes_are_due(self, scales: Scales, n_decodes: int, n_tokens: int, chunk: int) -> bool:
        """Return whether a decode step of these adapters is next, and not one of `n_tokens` of prompts.

        Several short prompts may be computed between two decode steps: a decode step of few rows is expensive per
        token, and each finished prompt adds a row. Together they have no more tokens than a `chunk` of one long prompt,
        and take no longer than `itl_target` allows.
        """
        n_before, seconds_before = self._prefill.get(scales, PrefillWork())
        if not n_before:
            return False
        seconds = seconds_before + self.cost.of(n_tokens) + self.cost.of(n_decodes)
        return n_before + n_tokens > min(TILE, chunk) or seconds > self._config.itl_target

    def note(self, items: list[StepItem], active: Mapping[int, Choice]) -> None:
        """Note that these items are the next step."""
        choices = [(active[item.seq], item.n_tokens) for item in items]
        prompts = [(choice, n_tokens) for choice, n_tokens in choices if not choice.decodes]
        decoding = [choice for choice, _ in choices if choice.decodes]
        self._before = self._prefill, self._adapters.last, self._shares.last
        self._shares.note_step(decoding, prompts[0][0] if prompts else None)
        self._adapters.note()
        n_tokens = sum(n_tokens for _, n_tokens in prompts)
        waiting = {choice.scales for choice in active.values()} if choices else set()
        self._prefill = {scales: work for scales, work in self._prefill.items() if scales in waiting}
        if n_tokens:
            scales = prompts[0][0].scales
            n_before, seconds_before = self._prefill.get(scales, PrefillWork())
            self._prefill[scales] = PrefillWork(n_before + n_tokens, seconds_before + self.cost.of(n_tokens))
        elif choices:
            self._prefill.pop(choices[0][0].scales, None)

    def note_ahead(self, decoding: Iterable[Choice]) -> None:
        """Note that a decode step of these choices has begun by itself."""
        self._prefill = {}  # all have the same adapters
        self._before = self._prefill, self._adapters.last, self._shares.last
        self._shares.note_step(decoding, None)

    def undo(self) -> None:
        """Undo the last step, which did not count."""
        self._prefill, self._adapters.last, self._shares.last = self._before

    def _chunks(self, prompts: list[Choice], chunk: int, *, n_taken: int = 0, evenly: bool = False) -> list[StepItem]:
        """Return chunks of prompts, in this order, for a step of `chunk` tokens, of which decodes take `n_taken`.

        `evenly`: decodes wait for the step, which must not be longer than a chunk.
        """
        budget = max(1, chunk - n_taken)
        n_described, items = MOST_EXTRA_OUTPUTS, list[StepItem]()
        for choice in prompts:
            if choice.next_media is not None:  # a step that computes rows of a picture computes nothing else
                if n_taken:
                    continue
                return [self._item(choice, budget, evenly=evenly)]
            item = self._item(choice, budget, n_described=n_described, n_others=n_taken, evenly=evenly)
            if item.n_tokens > 0:
                items.append(item)
                n_taken += item.n_tokens
                budget -= item.n_tokens
                n_described -= item.n_tokens if choice.n_described else 0
        return items

    def _item(
        self,
        choice: Choice,
        budget: int,
        *,
        n_described: int = MOST_EXTRA_OUTPUTS,
        n_others: int = 0,
        evenly: bool = False,
    ) -> StepItem:
        seq = cast("int", choice.seq)
        if choice.n_described:
            return StepItem(seq, min(budget, choice.n_pending_alike, n_described))
        if evenly:
            return StepItem(seq, choice.of_one_kind(even_part(budget, choice.n_pending_alike)))
        n_tokens = with_tail(budget, choice.n_pending_alike, n_others=n_others, n_batch=self._context.n_batch)
        return StepItem(seq, choice.of_one_kind(n_tokens))

    def _chunk(self, n_decodes: int, *, idle: bool) -> int:
        return chunk_size(
            self.cost,
            n_decodes=n_decodes,
            mixed=self._mixes,
            tiled=self._on_cpu,
            n_batch=self._context.n_batch,
            itl_target=self._config.itl_target,
            max_step=self._config.max_step_seconds,
            idle=idle,
        )


class LastSteps(NamedTuple):
    """The last step that an owner has chosen, and the last one that a set of adapters has computed."""

    owners: Mapping[str, int] = {}
    adapters: Mapping[Scales, int] = {}


class AdapterOrder:
    """The turns of LoRA adapters: which of the running choices' sets of adapters computes the next step.

    A step computes with one set of adapters, because llama.cpp's graph has one. Owners take turns to choose the set,
    and the sets of an owner take turns: with m owners that have k sets each, every set has its turn within m * k steps.
    Owners of the same set take part in each other's turns.
    """

    def __init__(self) -> None:
        self._n_steps = 0
        self.last = self._planned = LastSteps()  # without the step that is planned, and with it

    def choose(self, running: Sequence[Choice]) -> list[Choice]:
        """Return those of the `running` choices that the next step may compute: all of them have the same adapters.

        A prompt waits while its owner has a prompt of a higher priority with other adapters.
        """
        sets = {choice.scales for choice in running}
        if len(sets) < 2:
            self._planned = LastSteps()
            return list(running)
        candidates = [choice for choice in running if not _waits(choice, running)]
        owners, adapters = self.last
        owner = min((choice.request.owner for choice in candidates), key=lambda one: owners.get(one, 0))
        own = (choice.scales for choice in candidates if choice.request.owner == owner)
        scales = min(own, key=lambda one: adapters.get(one, 0))
        step = self._n_steps + 1
        # Clients choose the scales, so that sets are forgotten that nothing runs with.
        kept = {one: turn for one, turn in adapters.items() if one in sets}
        self._planned = LastSteps({**owners, owner: step}, {**kept, scales: step})
        return [choice for choice in candidates if choice.scales == scales]

    def note(self) -> None:
        """Note that the step is computed for which `choose` was called last."""
        self._n_steps += 1
        self.last = self._planned


def _waits(choice: Choice, running: Sequence[Choice]) -> bool:
    return choice.n_pending > 1 and any(
        other.n_pending > 1
        and other.request.owner == choice.request.owner
        and other.request.priority > choice.request.priority
        and other.scales != choice.scales
        for other in running
    )
