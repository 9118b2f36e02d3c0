"""The time that the drafts of an answer may lose.

Used by the engine thread only.
"""

from __future__ import annotations

# The time that rejected drafts may cost, in steps without drafts: at first, for each step, and at most. What accepted
# drafts save is added.
FIRST_BUDGET, BUDGET_PER_STEP, MAX_BUDGET = 1.25, 0.005, 8.0


class LossBudget:
    """The time that drafts may lose, counted in steps without drafts. A draft is accepted or is paid from here.

    A budget belongs to one request, whose loss it bounds; or several requests share one, and try more.

    Parameters
    ----------
    first
        The time that may be lost before anything is saved.
    most
        The limit of what is saved up.
    stake
        The share of what is left that one draft may lose.
    """

    def __init__(self, first: float = FIRST_BUDGET, *, most: float = MAX_BUDGET, stake: float = 1.0) -> None:
        self._left = first
        self._most = most
        self._stake = stake

    def count_step(self) -> None:
        self._add(BUDGET_PER_STEP)

    def affords(self, price: float) -> bool:
        return price <= self._stake * self._left

    def settle(self, price: float, n_accepted: int) -> None:
        """Pay for a draft of which `n_accepted` tokens saved a step each."""
        self._add(n_accepted - price)

    def _add(self, n_steps: float) -> None:
        self._left = min(self._left + n_steps, self._most)
