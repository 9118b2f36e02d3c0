"""The measured costs of a draft model, and those of a step together with the draft model's steps before it.

Used by the engine thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.drafting.length import RowCosts

if TYPE_CHECKING:
    from pyllmcancel.drafting.length import StepCosts


# A drafted token's assumed cost, in steps of the model, until some drafts are measured: it is low, so that they are.
ASSUMED_COST = 0.1
MIN_MEASURED = 2  # drafts; a single one may be slow for another reason
MAX_AGE = 512  # steps without a draft after which drafts are measured anew
FIRST_CHUNK = 64  # tokens of a text that are computed at once, until their cost is measured
MIN_CHUNK = 16  # fewer tokens say little about the cost of many
NEW_SHARE = 0.25  # of a measurement in the average


class ModelDraftCosts:
    """The seconds of a step whose drafted tokens a model computes first, one after the other.

    Parameters
    ----------
    costs
        The seconds of the step itself.
    seconds_per_token
        The draft model's time for one drafted token.
    n_known_rows
        The step's rows that no draft adds, and those of drafts that are there already.
    """

    def __init__(self, costs: StepCosts, seconds_per_token: float, n_known_rows: int) -> None:
        self._costs = costs
        self._seconds_per_token = seconds_per_token
        self._n_known_rows = n_known_rows

    def of(self, n_rows: int) -> float | None:
        seconds = self._costs.of(n_rows)
        if seconds is None:
            return None
        return seconds + self._seconds_per_token * max(0, n_rows - self._n_known_rows)


class DraftModelCosts:
    """The times that a draft model takes: for a drafted token, and for each token of a text before a draft."""

    def __init__(self) -> None:
        self._drafted = RowCosts()  # of a token, by the number of sequences that are drafted for together
        self._n_measured = 0  # drafts
        self._n_steps = 0  # of the model, since a draft was measured
        self._per_token: float | None = None  # seconds, of a text

    def with_drafts(self, costs: StepCosts, n_known_rows: int, n_sequences: int) -> ModelDraftCosts:
        """Return the costs of steps, `costs`, together with those of drafts for `n_sequences` answers at once."""
        self._n_steps += 1
        if self._n_steps > MAX_AGE:
            self._drafted, self._n_measured, self._n_steps = RowCosts(), 0, 0
        seconds = self._drafted.of(n_sequences) if self._n_measured >= MIN_MEASURED else None
        if seconds is None:
            seconds = ASSUMED_COST * (costs.of(1) or 0.0)
        return ModelDraftCosts(costs, seconds / n_sequences, n_known_rows)

    def observe_draft(self, n_sequences: int, seconds: float) -> None:
        """Learn the time of a drafted token."""
        self._n_steps = 0
        if seconds > 0.0:
            self._n_measured += 1
            self._drafted.observe(n_sequences, seconds)

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
