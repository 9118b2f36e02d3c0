"""Drafts for the choices that decode: tokens that are computed before they are sampled, since they probably follow.

The sampler chooses after each drafted token as it would in single steps, and a draft holds only as far as it says what
was chosen. So drafts change the speed of an answer, never the answer.

Used by the engine thread only.
"""

from __future__ import annotations

import logging
import math
from hashlib import sha256
from typing import TYPE_CHECKING

from pyllmcancel.constraints.healing import HealingConstraint, n_along
from pyllmcancel.drafting.answer_drafts import AnswerDrafts, Experiences, Reference, propose_alike
from pyllmcancel.drafting.length import RowCosts
from pyllmcancel.drafting.lookup import LONGEST, TokenText
from pyllmcancel.drafting.past_answers import PastAnswers
from pyllmcancel.drafting.sources import HEADS, MODEL, NGRAM, PAST, PREDICTION
from pyllmcancel.engine.draft_model import Want
from pyllmcancel.inner_tokenizer import InnerTokenizer
from pyllmcancel.step import MOST_EXTRA_OUTPUTS, StepStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pyllmcancel._native import Context, Model
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.engine.draft_model import DraftModel
    from pyllmcancel.requests.request import Choice, Request
    from pyllmcancel.step import StepItem, StepResult

logger = logging.getLogger("pyllmcancel.engine")

MAX_EXPECTED = 4096  # tokens of a past answer that a new prompt goes along
MAX_CERTAIN = 1024  # tokens that are delivered at once: others wait for that, some ten milliseconds
PATIENCE = 16  # tokens without a draft until steps run ahead, and until drafts are tried again


class Drafts:
    """Makes the drafts of all choices, and remembers the answers that later ones are drafted from."""

    def __init__(
        self, context: Context, model: Model, config: EngineConfig, draft_model: DraftModel | None = None
    ) -> None:
        self._context = context
        sources = config.draft_sources if context.can_draft and config.draft_max > 0 else ()
        by_model = draft_model.source if draft_model is not None else None
        self.sources = tuple(source for source in sources if source not in (MODEL, HEADS) or source == by_model)
        self._model = draft_model if by_model in self.sources else None
        self._most = min(config.draft_max, MOST_EXTRA_OUTPUTS)
        if config.draft_max > MOST_EXTRA_OUTPUTS:
            logger.warning(
                "drafts of %d tokens were asked for: a step has at most %d drafted tokens",
                config.draft_max,
                MOST_EXTRA_OUTPUTS,
            )
        self._costs = RowCosts()
        self._experiences = Experiences()
        self._piece: Callable[[int], bytes] = lambda token: model.piece(token) if token >= 0 else b""  # a picture's
        self.past = PastAnswers(self._piece, InnerTokenizer(model), most_bytes=config.past_answers_mib << 20)

    def foresee(self, request: Request) -> None:
        """Find the tokens with which a new request's answer certainly begins, before the request gets a slot."""
        params = request.params
        wanted = params.reuse_prefix and params.draft_max != 0
        if PAST not in self.sources or not wanted or len(request.choices) != 1 or request.choices[0].known:
            return
        choice = request.choices[0]
        key = answer_key(choice)
        if key is not None:
            choice.certain = self._certain(choice, key)[: min(choice.max_tokens, MAX_CERTAIN)]
            choice.sampler.accept_prompt(choice.certain)  # for penalties, which look at past tokens

    def _certain(self, choice: Choice, key: Hashable) -> list[int]:
        """Return the tokens that are certain to follow a choice's prompt.

        Of the tokens that go along a text, fewer go along a longer one. So a token that was the likeliest of all, or of
        those that went along the beginning of this choice's text, is the likeliest here, too, if it is allowed.
        """
        text = choice.given_back
        keys = [key, *(forced_key(key, choice, text[:length]) for length in range(1, len(text) + 1))]
        found = (self.past.certain(choice.request.owner, choice.prompt, one) for one in keys)
        return max((tokens[: n_along(tokens, text, self._piece)] for tokens in found), key=len)

    def attach(self, items: list[StepItem], choices: Sequence[Choice]) -> list[StepItem]:
        """Return the step's items, with drafts where those pay."""
        for choice in choices:
            if choice.drafts is not None:
                choice.drafts.cut(0)  # the draft of a step that was aborted, or never began
        n_rows = sum(item.n_tokens for item in items)
        n_free = self._context.n_cells - self._context.n_cells_used - n_rows
        room = min(self._context.n_batch - n_rows, n_free, MOST_EXTRA_OUTPUTS)
        if any(choice.next_known(1) for choice in choices):
            return self._attach_again(items, choices, room)
        if not self.sources or not self._may_draft(items):
            return items
        if len(items) > 1 and not self._context.kv_unified:
            return self._attach_alike(items, choices, min(room // len(items), self._most))
        drafted: list[StepItem] = []
        wants: dict[int, Want] = {}  # of the draft model, by the item's index
        late: list[Choice] = []
        for item, choice in zip(items, choices, strict=True):
            most = self._most_of(choice, item, min(room, self._most))
            draft = self._drafts_of(choice).propose(most, n_other_rows=n_rows - 1) if most > 0 else ()
            n_wanted = self._wanted(choice, most, n_rows, len(items), late)
            if n_wanted:
                wants[len(drafted)] = Want(choice, n_wanted)
            n_more = max(len(draft), n_wanted)
            n_rows += n_more
            room -= n_more
            drafted.append(item._replace(draft=draft) if draft else item)
        if wants or late:
            self._compute(drafted, wants, late)
        return drafted

    def _attach_again(self, items: list[StepItem], choices: Sequence[Choice], room: int) -> list[StepItem]:
        """Return the step's items, with the tokens that answers begun elsewhere have had. As drafts they are sampled
        again, so that each sampler and constraint is where it was.
        """
        drafted: list[StepItem] = []
        for item, choice in zip(items, choices, strict=True):
            most = max(0, min(room, choice.max_tokens - len(choice.generated) - 1))
            may_draft = item.n_tokens >= choice.n_pending and not (choice.next_media or choice.n_described)
            draft = choice.next_known(most) if may_draft else ()
            room -= len(draft)
            drafted.append(item._replace(draft=draft) if draft else item)
        return drafted

    def _attach_alike(self, items: list[StepItem], choices: Sequence[Choice], most: int) -> list[StepItem]:
        """Return the step's items, each with a draft of the same length, or none."""
        limits = [self._most_of(choice, item, most) for item, choice in zip(items, choices, strict=True)]
        # A constraint may cut a draft.
        if min(limits) < 1 or any(choice.constraint is not None for choice in choices):
            return items
        answers = [self._drafts_of(choice) for choice in choices]
        drafts = propose_alike(answers, self._costs, min(limits))
        return [item._replace(draft=draft) if draft else item for item, draft in zip(items, drafts, strict=True)]

    def _compute(self, items: list[StepItem], wants: dict[int, Want], late: list[Choice]) -> None:
        """Replace drafts of `items` by those of the draft model, and bring one of the `late` choices nearer to one."""
        assert self._model is not None
        self._context.rest()  # its threads would spin beside those of the draft model
        drafts = self._model.draft(list(wants.values()))
        for (index, want), draft in zip(wants.items(), drafts, strict=True):
            assert want.choice.drafts is not None
            want.choice.drafts.take_model(len(draft))
            if draft:
                items[index] = items[index]._replace(draft=draft)
        if late:
            self._model.catch_up(late[0], self._costs.of(len(items)) if len(items) > 1 else None)
        if not self._model.works:
            self._model = None  # which frees its memory

    def _wanted(self, choice: Choice, most: int, n_rows: int, n_items: int, late: list[Choice]) -> int:
        """Return how many tokens the draft model is to propose. A choice that it lags too far behind becomes `late`."""
        drafts, model = choice.drafts, self._model
        if most < 1 or model is None or drafts is None or not drafts.has_model or choice.media:
            return 0
        if choice.request.is_idle:  # a draft model's steps do not give way to others
            return 0
        if not model.reads(choice) or not model.has_room(choice, most):
            return 0
        length = drafts.length_of_model()
        if length is None:
            return 0
        lag = model.lag(choice)
        most = min(most, model.costs.n_tried or most)
        n_other_tokens = n_items - 1
        if lag <= model.max_lag:
            costs = model.costs.with_drafts(self._costs, n_rows, n_items, max(1, lag))
            return length.choose(costs, most, n_other_rows=n_rows - 1, n_other_tokens=n_other_tokens)
        # The later steps count, which have a token for each answer: this one may be a prompt's.
        costs = model.costs.with_drafts(self._costs, n_items, n_items)
        saved = length.saved(costs, most, n_other_rows=n_items - 1, n_other_tokens=n_other_tokens)
        if saved and model.is_worth_catching_up(choice, saved * (self._costs.of(1) or math.inf)):
            drafts.n_since_draft = 0  # the model is about to propose tokens
            late.append(choice)
        return 0

    def _may_draft(self, items: list[StepItem]) -> bool:
        """Return whether the step's rows are computed together.

        With divided cells those of one sequence are, and those of neighbouring sequences with as many rows as each
        other, in their order.
        """
        if len(items) < 2 or self._context.kv_unified:
            return True
        first, n_rows = items[0].seq, items[0].n_rows
        return all(item.seq == first + i and item.n_rows == n_rows for i, item in enumerate(items))

    @staticmethod
    def _most_of(choice: Choice, item: StepItem, most: int) -> int:
        """Return the limit of the choice's drafted tokens; less than one where it may have none."""
        # Nothing is drafted after the last token that the choice may get, which itself needs no computation.
        most = min(most, choice.max_tokens - len(choice.generated) - 1)
        if choice.request.params.draft_max is not None:
            most = min(most, choice.request.params.draft_max)
        if item.n_tokens < choice.n_pending or choice.certain or choice.n_described or choice.next_media:
            return 0
        return most

    def cut(self, choice: Choice, item: StepItem, n_tokens: int) -> StepItem:
        """Return the item with the first `n_tokens` of its draft."""
        if len(item.draft) <= n_tokens:
            return item
        if choice.drafts is not None:
            choice.drafts.cut(n_tokens)
        return item._replace(draft=item.draft[:n_tokens])

    def pay(self, choices: Iterable[Choice]) -> bool:
        """Return whether the next step of these choices is likely to have drafts: it is better planned than ahead."""
        return any(choice.drafts is not None and choice.drafts.n_since_draft < PATIENCE for choice in choices)

    def are_due(self, choices: Iterable[Choice]) -> bool:
        """Return whether drafts are to be tried, since steps have run ahead without them for a while."""
        return any(choice.drafts is not None and choice.drafts.n_since_proposal >= PATIENCE for choice in choices)

    def _drafts_of(self, choice: Choice) -> AnswerDrafts:
        if choice.drafts is None:
            choice.drafts = self._made(choice)
        return choice.drafts

    def _made(self, choice: Choice) -> AnswerDrafts:
        request = choice.request
        tokens = choice.tokens
        references: list[Reference] = []
        if PREDICTION in self.sources and request.params.prediction:
            references.append(Reference(PREDICTION, TokenText(request.params.prediction)))
        if PAST in self.sources and request.params.reuse_prefix:
            expected = self.past.expected(request.owner, tokens, MAX_EXPECTED)
            if expected:
                references.append(Reference(PAST, TokenText([*tokens[-LONGEST:], *expected])))
            references += [Reference(PAST, text) for text in self.past.texts(request.owner)]
        experience = self._experiences.of(request.owner)
        experience.begin_answer()
        own, model = NGRAM in self.sources, None if self._model is None else self._model.source
        return AnswerDrafts(tokens, references, self._costs, experience, own=own, model=model)

    def learn(self, items: list[StepItem], result: StepResult) -> None:
        """Learn what a step with these items cost."""
        decodes = result.status is StepStatus.OK and all(item.n_tokens == 1 for item in items)
        if self.sources and decodes and self._may_draft(items):
            self._costs.observe(sum(item.n_rows for item in items), (result.decode_us + result.sample_us) / 1e6)

    def release(self, choices: Iterable[Choice]) -> None:
        """Forget choices that have ended, as far as the draft model is concerned."""
        if self._model is not None:
            for choice in choices:
                self._model.release(choice)

    def remember(self, request: Request) -> None:
        """Keep the answers of a request that ends, however it ends, for its owner's later requests."""
        if PAST not in self.sources or not request.params.reuse_prefix:
            return
        for choice in request.choices:
            key = answer_key(choice)
            n_forced = choice.constraint.n_tokens if isinstance(choice.constraint, HealingConstraint) else 0
            forced, free = choice.generated[:n_forced], choice.generated[n_forced:]
            if forced and key is not None and self._certain(choice, key)[:n_forced] != forced:
                under = forced_key(key, choice, choice.given_back)
                self.past.remember(request.owner, choice.prompt, choice.generated, under)
            # Tokens that had to go along a text count as the prompt's: alone the model may choose others.
            self.past.remember(request.owner, [*choice.prompt, *forced], free, key)


def forced_key(key: Hashable, choice: Choice, text: bytes) -> Hashable:
    """Return the key of an answer that had to begin with `text`, right after this choice's prompt."""
    return key, text, len(choice.prompt)


def answer_key(choice: Choice) -> bytes | None:
    """Return what the tokens of an answer depend on besides the prompt; None if they may differ each time."""
    params = choice.request.params
    sampling = params.sampling
    if not sampling.is_greedy or sampling.grammar or params.constraint is not None:
        return None
    if sampling.n_logprobs is not None or params.prompt_logprobs:
        return None  # they need the rows of logits that nobody computes again
    # A digest, since thousands of tokens may have a bias: keys are kept, and compared with each other.
    return sha256(repr((sampling.with_seed(0), choice.adapted)).encode()).digest()
