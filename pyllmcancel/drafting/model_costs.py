"""The measured costs of a draft model, and those of a step together with the draft model's steps before it.

Used by the engine thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.drafting.length import RowCosts

if TYPE_CHECKING:
    from pyllmcancel.drafting.length import StepCosts


# A drafted token's assumed cost, in steps of the model, until some steps are measured: it is low, so that they are.
ASSUMED_COST = 0.1
MIN_MEASURED = 8  # steps of one token for each answer, some drafts: a single one may be slow for another reason
FIRST_DRAFT = 3  # tokens, a tile of rows: the limit of a draft that is made to learn its cost
MAX_AGE = 512  # steps without a draft after which the measured cost is doubted
DOUBT = 0.5  # the factor by which it is taken to be lower then, so that a draft which seemed too slow is measured anew
FIRST_CHUNK = 64  # tokens of a text that are computed at once, until their cost is measured
MIN_CHUNK = 16  # fewer tokens say little about the cost of many
NEW_SHARE = 0.25  # of a measurement in the average


class ModelDraftCosts(NamedTuple):
    """The seconds of a step, by `costs`, whose drafted tokens a model computes first, one after the other."""

    costs: StepCosts
    first: float  # the draft model's time for the first drafted token and the tokens that it has not seen
    each: float  # and for each further one
    n_known_rows: int  # which no draft adds

    def of(self, n_rows: int) -> float | None:
        seconds = self.costs.of(n_rows)
        n_drafted = n_rows - self.n_known_rows
        if seconds is None or n_drafted <= 0:
            return seconds
        return seconds + self.first + self.each * (n_drafted - 1)


class DraftModelCosts:
    """The times that a draft model takes: for a drafted token, and for each token of a text before a draft."""

    def __init__(self) -> None:
        self._steps = RowCosts()  # of the draft model, by their tokens
        self._n_measured = 0  # steps of one token for each answer
        self._n_without = 0  # steps of the model, since a draft was measured
        self._doubt = 1.0
        self._per_token: float | None = None  # seconds, of a text

    @property
    def n_tried(self) -> int | None:
        """The limit of tokens of a draft that is made to learn its cost; None where that is known, and not doubted."""
        return FIRST_DRAFT if self._n_measured < MIN_MEASURED or self._doubt < 1.0 else None

    def with_drafts(self, costs: StepCosts, n_known_rows: int, n_sequences: int, lag: int = 1) -> ModelDraftCosts:
        """Return the costs of steps, `costs`, together with those of drafts for `n_sequences` answers at once.

        The draft model's first step computes `lag` tokens of each answer.
        """
        self._n_without += 1
        if self._n_without > MAX_AGE:
            self._n_without, self._doubt = 0, DOUBT * self._doubt
        first, each = (self._seconds(n_tokens * n_sequences, costs) / n_sequences for n_tokens in (lag, 1))
        return ModelDraftCosts(costs, first, each, n_known_rows)

    def _seconds(self, n_tokens: int, costs: StepCosts) -> float:
        measured = self._steps.of(n_tokens) if self._n_measured >= MIN_MEASURED else None
        return ASSUMED_COST * (costs.of(1) or 0.0) if measured is None else self._doubt * measured

    def observe_step(self, n_sequences: int, n_tokens: int, seconds: float) -> None:
        """Learn the time of a draft model's step: `n_tokens` were computed, for one of each of `n_sequences`."""
        self._n_without, self._doubt = 0, 1.0
        if n_tokens == n_sequences:
            if self._n_measured == 0:
                self._steps.observe(1, seconds)  # an upper limit, which gives the others a scale
            self._n_measured += 1
        self._steps.observe(n_tokens, seconds)

    def observe_text(self, n_tokens: int, seconds: float) -> None:
        """Learn the time that the tokens of a text took."""
        if seconds > 0.0 and n_tokens >= MIN_CHUNK:
            each = seconds / n_tokens
            before = each if self._per_token is None else self._per_token
            self._per_token = (1.0 - NEW_SHARE) * before + NEW_SHARE * each

    def of_text(self, n_tokens: int) -> float:
        """Return the seconds that the tokens of a text take; 0 until that was measured."""
        return n_tokens * (self._per_token or 0.0)

    def chunk(self, seconds: float) -> int:
        """Return the number of a text's tokens that are computed in this time."""
        return FIRST_CHUNK if self._per_token is None else max(int(seconds / self._per_token), MIN_CHUNK)
