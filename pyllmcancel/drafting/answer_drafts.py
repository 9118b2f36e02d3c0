"""The drafts of one answer: of all texts that may foretell it, the one that agrees with its end for longest.

Where no text does, or only for a few tokens, a draft model may propose the tokens.

Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyllmcancel.drafting.length import Acceptance, DraftLength, LossBudget, RowCosts, StepCosts
from pyllmcancel.drafting.lookup import LONGEST, Match, TokenText, continuation

PAST = "past"  # the owner's recent answers
PREDICTION = "prediction"  # what the request itself expects
NGRAM = "ngram"  # the prompt and the answer so far
MODEL = "model"  # a draft model
SOURCES = (PAST, PREDICTION, NGRAM, MODEL)
PRIORS = {PAST: 0.8, PREDICTION: 0.8, NGRAM: 0.6, MODEL: 0.7}
# Tokens that must agree. Two common tokens in a row occur in any text.
SHORTEST = {PAST: 2, PREDICTION: 2, NGRAM: 3}
# Tokens that agree: such a match mostly goes on, whatever its source is. A text that nobody can foretell has none. So
# drafts from long matches are learnt about apart, and may lose more time at first: whole tiles of rows. The constants
# are the best of a few dozen for copied source code, with the costs of tests/unit/test_answer_drafts.py.
LONG = 8
LONG_PRIOR, LONG_WEIGHT, LONG_PROBED_P = 0.96, 25.0, 0.9
FIRST_LONG_BUDGET, MAX_LONG_BUDGET, LONG_STAKE = 6.0, 16.0, 0.5  # steps, and a share


class Reference(NamedTuple):
    """A text that may foretell the answer, and the source that it comes from."""

    source: str
    text: TokenText


class Counts(NamedTuple):
    """The tokens that were drafted from a source, and those of them that were accepted."""

    n_drafted: int = 0
    n_accepted: int = 0


class AnswerDrafts:
    """Proposes what follows the tokens of one answer, and learns which of it was right.

    Parameters
    ----------
    tokens
        The prompt, and the answer so far.
    references
        Texts besides the answer's own, the likeliest first.
    costs
        The measured costs of steps, which many answers share.
    own
        True if the answer's own text, with its prompt, is a source.
    model
        What is known of a draft model's tokens, from the owner's earlier answers too; None: there is no such model.

    Attributes
    ----------
    counts
        What was drafted, by source.
    n_since_proposal, n_since_draft
        The tokens of the answer since a draft was last looked for, and since one was last found to pay.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        references: Sequence[Reference],
        costs: RowCosts,
        *,
        own: bool = True,
        model: Acceptance | None = None,
    ) -> None:
        self._text = TokenText(tokens)
        self._references = references
        self._costs = costs
        self._own = own
        # Each of all sources together, so that the answer is not noticeably slower.
        self._budget, self._long_budget = (
            LossBudget(),
            LossBudget(FIRST_LONG_BUDGET, most=MAX_LONG_BUDGET, stake=LONG_STAKE),
        )
        self._lengths: dict[tuple[str, bool], DraftLength] = {}
        self._last: tuple[str, DraftLength, int] | None = None  # the source of the last draft, and its length
        self._last_is_long = False  # the last draft is from a text that agrees for long
        self._model = model
        self._model_length = DraftLength(Acceptance(PRIORS[MODEL] if model is None else model.p), self._budget)
        self.n_since_proposal = self.n_since_draft = 0  # tokens
        self.counts = dict.fromkeys(SOURCES, Counts())

    def propose(self, most: int, *, n_other_rows: int = 0) -> list[int]:
        """Return up to `most` tokens that probably follow, as many as pay; possibly none.

        Parameters
        ----------
        n_other_rows
            The step's rows besides the one of the answer's last token.
        """
        self._last = None
        self.n_since_proposal = 0
        found = self._find(most)
        if found is None:
            return []
        source, match = found
        self._last_is_long = match.length >= LONG
        length = self._length(source, long=self._last_is_long)
        n_drafted = length.choose(self._costs, len(match.tokens), n_other_rows=n_other_rows)
        if n_drafted:
            self._last = source, length, n_drafted
            self.n_since_draft = 0
        return match.tokens[:n_drafted]

    @property
    def has_model(self) -> bool:
        """True if a draft model may propose tokens of this answer."""
        return self._model is not None

    def model_may_pay(self, most: int, costs: StepCosts, *, n_other_rows: int = 0, n_other_tokens: int = 0) -> bool:
        """Return whether the model's tokens are wanted in place of what `propose` returned."""
        if self._model is None or self._text_is_better():
            return False
        return self._model_length.may_pay(costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)

    def choose_model(self, most: int, costs: StepCosts, *, n_other_rows: int = 0, n_other_tokens: int = 0) -> int:
        """Return how many tokens the model is to propose in place of what `propose` returned; possibly none.

        Parameters
        ----------
        costs
            The costs of steps, those of the draft model included.
        n_other_rows
            As for `propose`.
        n_other_tokens
            The tokens that the step gives to other answers, which wait for the draft model.
        """
        if self._model is None or self._text_is_better():
            return 0
        return self._model_length.choose(costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)

    def take_model(self, n_tokens: int) -> None:
        """Note the number of tokens that the model proposed. Unless there are none, they replace those of `propose`."""
        if n_tokens == 0:
            self._model_length.learn_nothing()
            return
        self._last = MODEL, self._model_length, n_tokens
        self.n_since_draft = 0

    def await_model(self) -> None:
        """Note that the model is about to propose tokens: it computes the tokens before them."""
        self.n_since_draft = 0

    def drop_model(self) -> None:
        """Go on without the model."""
        self._model = None

    def _text_is_better(self) -> bool:
        if self._last is None:
            return False
        return self._last_is_long or self._last[1].acceptance.p >= self._model_length.acceptance.p

    def cut(self, n_tokens: int) -> None:
        """Note that only the first `n_tokens` of what was proposed are computed."""
        if self._last is not None:
            source, length, _ = self._last
            self._last = (source, length, n_tokens) if n_tokens else None

    def follow(self, tokens: Sequence[int], *, n_taken: int | None = None) -> None:
        """Take the tokens that a step sampled: the accepted ones of the draft, and one more.

        Parameters
        ----------
        n_taken
            The number of those that the answer got, if it ended before the last one.
        """
        self._text.extend(tokens)
        self.n_since_proposal += len(tokens)
        self.n_since_draft += len(tokens)
        if self._last is None or not tokens:
            return
        source, length, n_drafted = self._last
        self._last = None
        n_accepted = min(len(tokens) - 1, n_drafted)
        length.learn(n_drafted, n_accepted)
        if source == MODEL and self._model is not None:
            self._model.learn(n_drafted, n_accepted)
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
        return best

    def _length(self, source: str, *, long: bool) -> DraftLength:
        key = source, long
        if key not in self._lengths and long:
            acceptance = Acceptance(LONG_PRIOR, LONG_WEIGHT)
            self._lengths[key] = DraftLength(acceptance, self._long_budget, probed_p=LONG_PROBED_P)
        elif key not in self._lengths:
            self._lengths[key] = DraftLength(Acceptance(PRIORS[source]), self._budget)
        return self._lengths[key]
