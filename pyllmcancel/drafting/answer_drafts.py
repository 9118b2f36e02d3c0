"""The drafts of one answer: of all texts that may predict it, the one that agrees with its end for longest.

Where no text does, or only for a few tokens, a draft model or the model's own heads may propose the tokens.

With divided cells llama.cpp computes sequences together that have as many rows as each other. Others take a further
pass through all weights, which costs more than a draft saves: there all answers have as many tokens drafted, or none.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyllmcancel.drafting.length import (
    PRIOR_WEIGHT,
    Acceptance,
    DraftLength,
    LossBudget,
    RowCosts,
    StepCosts,
    choose_length,
)
from pyllmcancel.drafting.lookup import LONGEST, Match, TokenText, continuation
from pyllmcancel.drafting.sources import HEADS, MODEL, NGRAM, PAST, PREDICTION, SOURCES

# Tokens that must agree. Two common tokens in a row occur in any text.
SHORTEST = {PAST: 2, PREDICTION: 2, NGRAM: 3}
# Tokens that agree: such a match mostly goes on, whatever its source is. A text that nobody can predict has none. So
# drafts from long matches are learnt about apart, and have a budget of their own.
LONG = 8
PRIORS = {PAST: 0.8, PREDICTION: 0.8, NGRAM: 0.6, MODEL: 0.7, HEADS: 0.7}
LONG_PRIOR = 0.96  # of matches of many tokens, whatever the source is
LONG_WEIGHT = 25.0  # drafted tokens
MAX_OWNERS = 256
# Answers of an owner after which a draft model, or heads, are tried as if nothing were known of them. Where they were
# mostly wrong, their context does not even follow the answers, and they would never be asked again.
RETRIAL = 64


class Reference(NamedTuple):
    """A text that may predict the answer, and the source that it comes from."""

    source: str
    text: TokenText


class Found(NamedTuple):
    """The tokens that may follow by one source, and the lengths of its drafts."""

    source: str
    match: Match
    length: DraftLength


class Counts(NamedTuple):
    """The tokens that were drafted from a source, and those of them that were accepted."""

    n_drafted: int = 0
    n_accepted: int = 0


class Experience:
    """The share of drafted tokens that an owner's answers have accepted, by source: what the next answer begins with.

    It is an owner's own. Otherwise the length of a draft would tell a little about the answers of others.
    """

    def __init__(self) -> None:
        self._acceptances: dict[tuple[str, bool], Acceptance] = {}
        self._n_answers = 0

    def begin_answer(self) -> None:
        """Note that a further answer begins."""
        self._n_answers += 1
        if self._n_answers % RETRIAL == 0:
            for source in (MODEL, HEADS):
                self._acceptances.pop((source, False), None)

    def of(self, source: str, *, long: bool = False) -> Acceptance:
        """Return what is known of drafts from a source, and from matches that are `long`, to be learnt from."""
        key = source, long
        if key not in self._acceptances:
            self._acceptances[key] = Acceptance(LONG_PRIOR if long else PRIORS[source], weight_of(long=long))
        return self._acceptances[key]


class Experiences:
    """The experience of each owner; of those that were not asked for, the oldest are forgotten."""

    def __init__(self) -> None:
        self._owners: dict[str, Experience] = {}

    def of(self, owner: str) -> Experience:
        found = self._owners.pop(owner, None) or Experience()
        self._owners[owner] = found  # the newest last
        if len(self._owners) > MAX_OWNERS:
            del self._owners[next(iter(self._owners))]
        return found


def weight_of(*, long: bool) -> float:
    """Return the number of drafted tokens that an answer's first estimate counts as."""
    return LONG_WEIGHT if long else PRIOR_WEIGHT


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
        self._model = model
        self.has_model = model is not None  # until it fails
        self.n_since_proposal = self.n_since_draft = 0  # tokens since a draft was looked for, and since one paid
        self.counts = dict.fromkeys(SOURCES, Counts())

    def propose(self, most: int, *, n_other_rows: int = 0) -> list[int]:
        """Return up to `most` tokens that probably follow, as many as pay beside the step's `n_other_rows`."""
        return propose_alike([self], self._costs, most, n_other_rows=n_other_rows)[0]

    def look(self, most: int) -> Found | None:
        """Look for up to `most` tokens that probably follow, to be drafted or not."""
        self._last, self.n_since_proposal = None, 0
        for budget in self._budgets.values():
            budget.count_step()
        found = self._find(most)
        return None if found is None else Found(*found, self._length(found[0], long=found[1].length >= LONG))

    def take(self, found: Found, n_tokens: int) -> list[int]:
        """Return a draft of what `look` found."""
        if n_tokens:
            self._last = found.source, found.match.length >= LONG, n_tokens
            self.n_since_draft = 0
        return found.match.tokens[:n_tokens]

    def length_of_model(self) -> DraftLength | None:
        """Return the lengths of the model's drafts, which replace what `propose` returned; None if that is better."""
        if self._model is None or not self.has_model:
            return None
        length = self._length(self._model)
        if self._last is None:
            return length
        source, long, _ = self._last
        return None if long or self._length(source).acceptance.p >= length.acceptance.p else length

    def take_model(self, n_tokens: int) -> None:
        """Note the number of tokens that the model proposed. Unless there are none, they replace those of `propose`."""
        assert self._model is not None
        if n_tokens == 0:
            self._length(self._model).learn_nothing()
            return
        self._last = self._model, False, n_tokens
        self.n_since_draft = 0

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


def propose_alike(
    answers: Sequence[AnswerDrafts], costs: StepCosts, most: int, *, n_other_rows: int = 0
) -> list[list[int]]:
    """Return a draft of each answer, all of the same length, at most `most`; empty lists if none pay."""
    looked = [answer.look(most) for answer in answers]
    found = [one for one in looked if one is not None]
    if len(found) < len(answers):
        return [[] for _ in answers]
    n_found = min(len(one.match.tokens) for one in found)
    n_tokens = choose_length([one.length for one in found], costs, n_found, n_other_rows=n_other_rows)
    return [answer.take(one, n_tokens) for answer, one in zip(answers, found, strict=True)]
