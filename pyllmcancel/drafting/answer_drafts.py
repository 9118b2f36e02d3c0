"""The drafts of one answer: of all texts that may predict it, the one that agrees with its end for longest.

Where no text does, or only for a few tokens, a draft model or the model's own heads may propose the tokens.

With divided cells llama.cpp computes sequences together that have as many rows as each other. Others take a further
pass through all weights, which costs more than a draft saves: there all answers have as many tokens drafted, or none.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyllmcancel.drafting.experience import Experience, weight_of
from pyllmcancel.drafting.length import Acceptance, DraftLength, LossBudget, RowCosts, StepCosts, best_draft, price_of
from pyllmcancel.drafting.lookup import LONGEST, Match, TokenText, continuation
from pyllmcancel.drafting.sources import NGRAM, PAST, PREDICTION, SOURCES

# Tokens that must agree. Two common tokens in a row occur in any text.
SHORTEST = {PAST: 2, PREDICTION: 2, NGRAM: 3}
# Tokens that agree: such a match mostly goes on, whatever its source is. A text that nobody can predict has none. So
# drafts from long matches are learnt about apart, and have a budget of their own.
LONG = 8


class Reference(NamedTuple):
    """A text that may predict the answer, and the source that it comes from."""

    source: str
    text: TokenText


class Counts(NamedTuple):
    """The tokens that were drafted from a source, and those of them that were accepted."""

    n_drafted: int = 0
    n_accepted: int = 0


class AnswerDrafts:
    """Proposes what follows the tokens of one answer, prompt included, and learns which of it was right.

    `references` are further texts, the likeliest first, `costs` those of steps, which many answers share. The owner's
    other answers have taught the `experience`, and this one adds to it. `own`: the answer's own text is a source.
    `model`: the source of a draft model or of heads, if they may propose tokens; `has_model` is set to False when they
    fail.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        references: Sequence[Reference],
        costs: RowCosts,
        experience: Experience,
        *,
        own: bool = True,
        model: str | None = None,
    ) -> None:
        self._text = TokenText(tokens)
        self._references = references
        self._costs = costs
        self._own = own
        self._experience = experience
        # All sources share them, so that the answer is not noticeably slower.
        self._budgets = {long: LossBudget() for long in (False, True)}
        self._lengths: dict[tuple[str, bool], DraftLength] = {}
        self._last: tuple[str, bool, int] | None = None  # of the last draft: the source, if it is long, its length
        self._found: tuple[str, Match] | None = None  # by `look`
        self._model = model
        self.has_model = model is not None  # until it fails
        self.n_since_proposal = self.n_since_draft = 0  # tokens since a draft was looked for, and since one paid
        self.counts = dict.fromkeys(SOURCES, Counts())

    def propose(self, most: int, *, n_other_rows: int = 0) -> list[int]:
        """Return up to `most` tokens that probably follow, as many as pay beside the step's `n_other_rows`."""
        self._begin_step()
        found = self._find(most)
        if found is None:
            return []
        source, match = found
        long = match.length >= LONG
        length = self._length(source, long=long)
        n_drafted = length.choose(self._costs, len(match.tokens), n_other_rows=n_other_rows)
        if n_drafted:
            self._last = source, long, n_drafted
            self.n_since_draft = 0
        return match.tokens[:n_drafted]

    def look(self, most: int) -> int:
        """Look for up to `most` tokens that probably follow; returns how many there are, to be drafted or not."""
        self._begin_step()
        self._found = self._find(most)
        return 0 if self._found is None else len(self._found[1].tokens)

    def _begin_step(self) -> None:
        self._last, self.n_since_proposal = None, 0
        for budget in self._budgets.values():
            budget.count_step()

    @property
    def p_of_found(self) -> float:
        """The probability with which a token of what `look` found is accepted; 0 if it found none."""
        return 0.0 if self._found is None else self._length_of(self._found).acceptance.p

    def affords_found(self, price: float) -> bool:
        """Return whether the budget allows a draft of what `look` found, which may lose `price` steps."""
        return self._found is not None and self._length_of(self._found).budget.affords(price)

    def take_found(self, n_tokens: int, price: float) -> list[int]:
        """Return a draft of what `look` found, which may lose `price` steps."""
        assert self._found is not None
        source, match = self._found
        self._length_of(self._found).take(n_tokens, price)
        self._last = source, match.length >= LONG, n_tokens
        self.n_since_draft = 0
        return match.tokens[:n_tokens]

    def saved_by_model(self, most: int, costs: StepCosts, *, n_other_rows: int = 0, n_other_tokens: int = 0) -> float:
        """Return the share of the time that the model's drafts would save; 0 if `propose` returned a better one."""
        if self._model is None or not self.has_model or self._text_is_better(self._model):
            return 0.0
        return self._length(self._model).saved(costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)

    def choose_model(self, most: int, costs: StepCosts, *, n_other_rows: int = 0, n_other_tokens: int = 0) -> int:
        """Return how many tokens the model is to propose in place of what `propose` returned; possibly none.

        The `costs` include those of the draft model. `n_other_tokens` are those of other answers, which wait for it.
        """
        if self._model is None or not self.has_model or self._text_is_better(self._model):
            return 0
        return self._length(self._model).choose(costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)

    def take_model(self, n_tokens: int) -> None:
        """Note the number of tokens that the model proposed. Unless there are none, they replace those of `propose`."""
        assert self._model is not None
        if n_tokens == 0:
            self._length(self._model).learn_nothing()
            return
        self._last = self._model, False, n_tokens
        self.n_since_draft = 0

    def _text_is_better(self, model: str) -> bool:
        if self._last is None:
            return False
        source, long, _ = self._last
        return long or self._length(source).acceptance.p >= self._length(model).acceptance.p

    def cut(self, n_tokens: int) -> None:
        """Note that only the first `n_tokens` of what was proposed are computed."""
        if self._last is not None:
            source, long, _ = self._last
            self._last = (source, long, n_tokens) if n_tokens else None

    def follow(self, tokens: Sequence[int], *, n_taken: int | None = None) -> None:
        """Take a step's tokens, accepted ones and one more, of which the answer got the first `n_taken`."""
        self._text.extend(tokens)
        self.n_since_proposal += len(tokens)
        self.n_since_draft += len(tokens)
        if self._last is None or not tokens:
            return
        source, long, n_drafted = self._last
        self._last = None
        n_accepted = min(len(tokens) - 1, n_drafted)
        self._length(source, long=long).learn(n_drafted, n_accepted)
        self._experience.of(source, long=long).learn(n_drafted, n_accepted)
        before = self.counts[source]
        n_delivered = n_accepted if n_taken is None else min(n_accepted, n_taken)
        self.counts[source] = Counts(before.n_drafted + n_drafted, before.n_accepted + n_delivered)

    def _find(self, most: int) -> tuple[str, Match] | None:
        suffix = self._text[len(self._text) - min(LONGEST, len(self._text)) :]
        best: tuple[str, Match] | None = None
        for source, text in self._references:
            match = continuation(suffix, text, most, shortest=SHORTEST[source])
            if match is not None and (best is None or match.length > best[1].length):
                best = source, match
        if self._own:
            before = len(self._text)
            match = continuation(suffix, self._text, most, before=before, shortest=SHORTEST[NGRAM])
            if match is not None and (best is None or match.length > best[1].length):
                best = NGRAM, match
        return None if best is None else text_only(*best)

    def _length_of(self, found: tuple[str, Match]) -> DraftLength:
        source, match = found
        return self._length(source, long=match.length >= LONG)

    def _length(self, source: str, *, long: bool = False) -> DraftLength:
        key = source, long
        if key not in self._lengths:
            acceptance = Acceptance(self._experience.of(source, long=long).p, weight_of(long=long))
            self._lengths[key] = DraftLength(acceptance, self._budgets[long])
        return self._lengths[key]


def text_only(source: str, match: Match) -> tuple[str, Match] | None:
    """Return a match as far as its tokens are text; None if it begins with a picture's, which are negative."""
    n_text = next((n for n, token in enumerate(match.tokens) if token < 0), len(match.tokens))
    return (source, match._replace(tokens=match.tokens[:n_text])) if n_text else None


def propose_alike(answers: Sequence[AnswerDrafts], costs: StepCosts, most: int) -> list[list[int]]:
    """Return a draft of each answer, all of the same length, at most `most`; empty lists if none pay."""
    none: list[list[int]] = [[] for _ in answers]
    n_known = [answer.look(most) for answer in answers]
    ps = [answer.p_of_found for answer in answers]
    length = min(n_known)
    while length := best_draft(ps, costs, length).n_tokens:
        price = price_of(len(answers) * length, costs, len(answers))  # of each: all wait for the step
        if all(answer.affords_found(price) for answer in answers):
            return [answer.take_found(length, price) for answer in answers]
        length -= 1
    return none
