"""The time that the drafts of an answer may lose. Used by the engine thread only."""

from __future__ import annotations

# The time that rejected drafts may cost, in steps without drafts: at first, for each step, and at most. What accepted
# drafts save is added.
FIRST_BUDGET, BUDGET_PER_STEP, MAX_BUDGET = 1.5, 0.005, 8.0


class LossBudget:
    """The time that a request's drafts may lose, in steps without drafts: what rejected ones took is paid from here."""

    def __init__(self) -> None:
        self._left = FIRST_BUDGET

    def count_step(self) -> None:
        self._add(BUDGET_PER_STEP)

    def affords(self, price: float) -> bool:
        return price <= self._left

    def settle(self, price: float, n_accepted: int) -> None:
        """Pay for a draft of which `n_accepted` tokens saved a step each."""
        self._add(n_accepted - price)

    def _add(self, n_steps: float) -> None:
        self._left = min(self._left + n_steps, MAX_BUDGET)
