"""Whether an idle prefix that has to leave its cells is worth a copy, while somebody waits for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.step_cost import StepCostModel

# Before anything was copied. A virtual machine whose host takes free pages back, and must provide them again, may need
# fifteen times as long.
USUAL_SECONDS = 0.2e-3 / (1 << 20)
# So many of those that left lately count, and as if one more of PRIOR had come back.
MEMORY = 32
PRIOR = 8
# A copy that is not made cannot show that they have become cheaper: now and then one is.
HOPE = 0.98


class SwapPolicy:
    """Compares what a copy takes with what computing the prefix again would, as often as such ones were asked for.

    Where the memory is quick it always says yes: copying is some hundred times faster than computing.
    """

    def __init__(self, cost: StepCostModel) -> None:
        self._cost = cost
        self._seconds_per_byte = USUAL_SECONDS
        # Prefixes that left their cells, and parts of them that were asked for again. Older ones count less and less.
        self._n_left = self._n_returned = 0.0

    @property
    def probability(self) -> float:
        """That what leaves now will be asked for again."""
        return (self._n_returned + 1) / (self._n_left + PRIOR)

    def is_worth_copying(self, n_tokens: int, n_bytes: int) -> bool:
        """Whether a prefix of so many tokens is."""
        return n_bytes * self._seconds_per_byte <= self.probability * self._cost.of(n_tokens)

    def note_copy(self, n_bytes: int, seconds: float) -> None:
        """One was copied."""
        self._seconds_per_byte = (self._seconds_per_byte + seconds / n_bytes) / 2

    def note_none(self) -> None:
        """One was not."""
        self._seconds_per_byte *= HOPE

    def note_leave(self) -> None:
        """A prefix has left its cells, copied or not."""
        decay = 1 - 1 / MEMORY
        self._n_left = self._n_left * decay + 1
        self._n_returned *= decay

    def note_return(self, share: float) -> None:
        """Such a `share` of one that had left was asked for, be there a copy or not."""
        self._n_returned += share
