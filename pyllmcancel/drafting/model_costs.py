"""The cost of a step together with the draft model's steps before it.

Used by the engine thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.drafting.length import StepCosts


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
