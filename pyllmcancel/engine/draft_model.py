"""A draft model: a small model that proposes the next tokens of answers, one step of its own for each token.

It computes in a context of its own, so that it has an abort gate of its own. Each of its steps has the flags of the
requests that it drafts for: a cancel ends a draft as it ends a step. Its failures cost an answer its drafts, and
nothing else.

Used by the engine thread only.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyllmcancel.drafting.model_costs import DraftModelCosts
from pyllmcancel.drafting.sources import HEADS, MODEL
from pyllmcancel.errors import ContextError, Error
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.step import StepItem, StepStatus

if TYPE_CHECKING:
    from typing import Self

    from pyllmcancel._native import CancelFlag, Context, MediaEncoder, Model, Sampler
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.step import StepResult

logger = logging.getLogger("pyllmcancel.engine")

# Limit of the tokens before a draft that its first step computes. If more are missing, steps without drafts come first.
MAX_LAG = 32
HEAD_START = 16  # tokens that an answer is expected to have, at least
MAX_FAILURES = 3  # in a row, after which nothing more is drafted by the model
NO_ROOM = "its context has no room"


class Want(NamedTuple):
    """A choice, and the number of tokens to draft for it."""

    choice: Choice
    n_tokens: int


@dataclass(eq=False, slots=True)
class Place:
    """A sequence of the draft model's context, idle between two calls."""

    seq: int
    sampler: Sampler
    choice: Choice | None = None  # whose tokens the cells hold; None if it has ended
    # The owner of the tokens: nobody else starts from them, or could tell from a draft's time that they are there.
    owner: str | None = None
    first: int = 0  # the number of the choice's token that the cells begin with
    n_valid: int = 0  # the choice's tokens, from that one on, that the cells held when they were last used
    used_at: int = 0  # the number of the call that used it last


class DraftModel:
    """Proposes tokens for choices that decode.

    The model's own heads, `pyllmcancel.engine.heads`, are one, too: they read more than tokens.

    Nothing else uses the `context` on the draft model, whose memory must be able to go back. `model_context` computes
    the model which the drafts are for. The `costs` of drafts are learnt by the `clock`, in seconds. `max_lag` is the
    limit of a choice's tokens that are not computed here when it gets a draft.
    """

    source = MODEL
    name = "the draft model"

    def __init__(
        self,
        context: Context,
        model_context: Context,
        config: EngineConfig,
        native: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self.works = True  # until it has failed too often
        self._model_context = model_context
        self.max_lag = min(MAX_LAG, context.n_batch)
        self._clock = clock
        self._n_vocab = min(model_context.model.n_vocab, context.model.n_vocab)
        self._n_ctx = min(context.n_ctx, context.model.n_ctx_train)
        self._draft_model = context.model
        self._n_min = config.draft_min
        self._least_logprob = math.log(config.draft_p_min) if config.draft_p_min > 0.0 else -math.inf
        greedy = SamplingParams(temperature=0.0, n_logprobs=0 if config.draft_p_min > 0.0 else None)
        self._places = [Place(seq, native.Sampler(context.model, greedy)) for seq in range(context.n_seq_max)]
        self._max_seconds = config.max_step_seconds
        self.costs = DraftModelCosts()
        self._n_calls = 0
        self._n_failures = 0

    @classmethod
    def on(cls, draft: Model, context: Context, config: EngineConfig, native: Any) -> Self:
        """Make a context on a loaded draft model, or on a model that has heads, with as many cells as `context` has, in
        the same layout.

        Raises ContextError.
        """
        heads = cls.source == HEADS
        own = config if heads else config.of_draft_model()
        try:
            made = native.Context(
                draft,
                n_ctx=context.n_cells,
                n_seq_max=config.parallel,
                n_batch=max(config.step_tokens(), config.parallel),
                kv_unified=context.kv_unified,
                heads=heads,
                **own.memory_options(),
                **own.thread_options(),
                checkpoint_interval=0,  # a draft model computes again what a sliding window has lost, and heads do not
            )
        except ContextError as error:
            raise ContextError(f"{cls.name}: {error}") from error
        return cls(made, context, config, native)

    def reads(self, choice: Choice) -> bool:
        """Return whether what a draft is made from is there before the step."""
        return True

    def lag(self, choice: Choice) -> int:
        """Return the number of the choice's tokens that are not computed here."""
        place = self._place_of(choice)
        return choice.n_known - (place.n_valid if place is not None else 0)

    def has_room(self, choice: Choice, n_tokens: int) -> bool:
        """Return whether the choice and a draft of `n_tokens` fit into the draft model's context."""
        return choice.n_known + n_tokens <= self._n_ctx

    def is_worth_catching_up(self, choice: Choice, saved_seconds: float) -> bool:
        """Return whether to compute the tokens before a draft, for an answer whose end nobody knows.

        It is expected to have as many further tokens as it has, and a few. What is computed must take less time than
        drafts save until then, `saved_seconds` for each token of the answer. So an answer of a short prompt is soon
        drafted for, and one of a long prompt later.
        """
        n_generated = len(choice.generated)
        n_expected = min(HEAD_START + n_generated, choice.max_tokens - n_generated)
        return self.costs.of_text(self.lag(choice)) <= saved_seconds * n_expected

    def catch_up(self, choice: Choice, max_seconds: float | None = None) -> None:
        """Compute some of the choice's tokens that are not computed here. Others may wait for `max_seconds`, by default
        the time of a prompt's step.
        """
        if not (self.works and is_wanted(choice)):
            return
        place, n_pending = self._open(choice)
        if place is None:
            return
        try:
            chunk = self.costs.chunk(max_seconds or self._max_seconds)
            n_tokens = min(max(1, n_pending - 1), chunk, self._context.n_batch)  # the last one is a draft's
            if not self._make_room(n_tokens, [place]):
                self._give_up([choice], NO_ROOM)
                return
            began = self._clock()
            result = self._step([StepItem(place.seq, n_tokens)], [choice])
            if result is not None:
                self.costs.observe_text(n_tokens, self._clock() - began)
        finally:
            self._close([place])

    def draft(self, wants: Sequence[Want]) -> list[list[int]]:
        """Return the drafts, possibly empty, of choices with a lag of at most `max_lag`."""
        drafts: list[list[int]] = [[] for _ in wants]
        places: dict[int, Place] = {}  # by the index in `wants`
        items: list[StepItem] = []
        try:
            for number, (choice, _) in enumerate(wants):
                place, n_pending = self._open(choice) if is_wanted(choice) else (None, 0)
                if place is None:
                    continue
                places[number] = place
                n_rows = sum(item.n_tokens for item in items) + n_pending
                if n_pending > self.max_lag or n_rows > self._context.n_batch:
                    continue  # of more than a step can compute, and where a window has moved on
                if not self._make_room(n_rows + sum(want.n_tokens for want in wants), places.values()):
                    self._give_up([choice], NO_ROOM)
                    continue
                items.append(StepItem(place.seq, n_pending))
            self._run(items, wants, places, drafts)
        finally:
            self._close(places.values())
        for draft, want in zip(drafts, wants, strict=True):
            if len(draft) < self._n_min or not is_wanted(want.choice):
                draft.clear()
        return drafts

    def take_turns(self, encoder: MediaEncoder) -> None:
        """Let its steps take turns with those of the model's projector."""
        self._context.take_turns(encoder)

    def release(self, choice: Choice) -> None:
        """Forget a choice that has ended. Its cells stay, for the same owner's next prompts, until others need them."""
        place = self._place_of(choice)
        if place is not None:
            place.choice = None

    # -- sequences ----------------------------------------------------------------------------------------------------

    def _place_of(self, choice: Choice) -> Place | None:
        return next((place for place in self._places if place.choice is choice), None)

    def _free_place(self, choice: Choice, tokens: Sequence[int]) -> Place:
        """Return the place of no choice with a slot that has the most of `tokens`, or was not used for longest."""
        owner, reuses = choice.request.owner, choice.request.params.reuse_prefix
        free = [place for place in self._places if place.choice is None or place.choice.seq is None]
        own = [place for place in free if reuses and place.owner == owner]
        reusable = dict(zip((place.seq for place in own), self._reusable(choice, own, tokens), strict=True))
        found = max(free, key=lambda place: (reusable.get(place.seq, 0), -place.used_at))
        if reusable.get(found.seq, 0) == 0:
            self._context.drop_cells(found.seq)
            found.n_valid = 0
        return found

    def _reusable(self, choice: Choice, places: Sequence[Place], tokens: Sequence[int]) -> list[int]:
        """Return how many of the choice's tokens each of these places could give to it."""
        common = self._context.common_prefixes(tokens) if places else []
        return [common[place.seq] for place in places]

    def _open(self, choice: Choice) -> tuple[Place | None, int]:
        """Open a sequence for a choice; returns the number of tokens to compute before a draft."""
        flag = cast("CancelFlag", choice.request.cancellation.flag)
        place = self._place_of(choice)
        n_held = 0 if place is None else place.n_valid
        if place is None:
            place = self._free_place(choice, choice.tokens)
        place.choice, place.owner = choice, choice.request.owner
        self._n_calls += 1
        place.used_at = self._n_calls
        try:
            n_pending = self._start(place, choice, n_held, flag)
        except (Error, MemoryError) as error:  # such as a token that the draft model does not have
            place.n_valid = 0
            self._give_up([choice], str(error) or type(error).__name__)
            return None, 0
        return (place, n_pending) if n_pending else (None, 0)

    def _start(self, place: Place, choice: Choice, n_held: int, flag: CancelFlag) -> int:
        """Open the place's sequence; returns the number of tokens to compute before a draft, or 0 if there is none.

        Its cells are known to hold the first `n_held` tokens, from the place's first one on.
        """
        n_held = min(n_held, choice.n_known - 1)  # the last token is always computed
        tokens = choice.tokens_from(n_held)
        place.n_valid = self._context.open(place.seq, tokens, place.sampler, flag, n_held=n_held)
        return choice.n_known - place.n_valid

    def _close(self, places: Iterable[Place]) -> None:
        if not self.works:
            return  # they are closed
        for place in places:
            choice = place.choice
            n_known = choice.n_known - place.first if choice is not None else 0
            place.n_valid = min(self._context.n_committed(place.seq), n_known)
            self._context.close(place.seq, keep=True)
        self._context.rest()

    def _make_room(self, n_tokens: int, used: Collection[Place]) -> bool:
        """Make cells free, by eviction if need be; False if the sequences in use hold too many."""
        idle = [place for place in self._places if place not in used]
        for place in sorted(idle, key=lambda place: place.used_at):
            if self._context.n_cells_used + n_tokens <= self._context.n_cells:
                return True
            self._context.drop_cells(place.seq)
            place.n_valid = 0
        return self._context.n_cells_used + n_tokens <= self._context.n_cells

    # -- steps --------------------------------------------------------------------------------------------------------

    def _run(
        self, items: list[StepItem], wants: Sequence[Want], places: dict[int, Place], drafts: list[list[int]]
    ) -> None:
        """Draft a token for each of `items`, and again for those that go on."""
        numbers = {place.seq: number for number, place in places.items()}
        began = self._clock()
        before, items = self._in_turn(items)
        if before and self._step(before, [wants[numbers[item.seq]].choice for item in before]) is None:
            return
        n_before = sum(item.n_tokens for item in before)
        while items:
            result = self._step(items, [wants[numbers[item.seq]].choice for item in items])
            if result is None:
                return
            now = self._clock()
            n_tokens = n_before + sum(item.n_tokens for item in items)
            self.costs.observe_step(len(items), n_tokens, now - began)
            began, n_before, going_on = now, 0, []
            for row in result.rows:
                number = numbers[row.seq]
                if not row.sampled or not self._is_likely(row.sampled[0].token, row.sampled[0].logprob):
                    continue
                drafts[number].append(row.token)
                if len(drafts[number]) < wants[number].n_tokens and is_wanted(wants[number].choice):
                    going_on.append(StepItem(row.seq, 1))
            items = going_on

    def _in_turn(self, items: list[StepItem]) -> tuple[list[StepItem], list[StepItem]]:
        """Return the items of a step before the one that gives the first token of a draft, and those of that one."""
        return [], items

    def _is_likely(self, token: int, logprob: float | None) -> bool:
        # Nobody asks for tokens after an end.
        is_known = token < self._n_vocab and not self._draft_model.is_eog(token)
        return is_known and (logprob is None or logprob >= self._least_logprob)

    def _step(self, items: list[StepItem], choices: list[Choice]) -> StepResult | None:
        """Compute a step; None if it gave nothing. An aborted one is no failure."""
        try:
            result = self._context.step(items)
        except (Error, MemoryError) as error:
            self._note_failure(choices, str(error) or type(error).__name__)
            return None
        match result.status:
            case StepStatus.OK:
                self._n_failures = 0
                return result
            case StepStatus.ABORTED:
                return None
            case StepStatus.NO_ROOM:
                self._give_up(choices, NO_ROOM)
            case _:
                self._note_failure(choices, f"its step failed ({result.status.name.lower()})")
        return None

    def _note_failure(self, choices: list[Choice], why: str) -> None:
        self._give_up(choices, why)
        self._n_failures += 1
        if self._n_failures >= MAX_FAILURES:
            logger.error("%s has failed %d times in a row: it is not used any more", self.name, self._n_failures)
            self.works = False
            for place in self._places:
                self._context.close(place.seq, keep=False)
                place.choice = None

    def _give_up(self, choices: list[Choice], why: str) -> None:
        for choice in choices:
            assert choice.drafts is not None
            choice.drafts.has_model = False
            logger.warning("request %s goes on without %s: %s", choice.request.id, self.name, why)


def is_wanted(choice: Choice) -> bool:
    """Return whether anybody waits for the choice: nothing is drafted for a client that has left."""
    request = choice.request
    return not request.cancellation.requested and (request.client is None or not request.client.has_left())
