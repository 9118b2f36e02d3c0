"""Whether an idle prefix is worth a copy for which somebody has to wait. Used by the engine thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.step_cost import StepCostModel

# What copies are thought to take before there were any: seconds, for so many bytes. The host of a virtual machine that
# takes free pages back, and must provide them again, may need fifteen times as long.
USUAL_SECONDS, USUAL_BYTES = 3.2e-3, 16 << 20
COPY_DECAY = 0.75
# So many of those that left lately count, and as if so many more had left, of which one was asked for again.
WINDOW = 32
PRIOR = 24
# A copy that is not made cannot show that they have become cheaper: now and then one is.
SKIP_DISCOUNT = 0.98


class SwapPolicy:
    """Compares what a copy takes with what computing the prefix again would, as often as such ones are asked for."""

    def __init__(self, cost: StepCostModel) -> None:
        self._cost = cost
        self._seconds, self._bytes = USUAL_SECONDS, float(USUAL_BYTES)
        # Prefixes that left their cells, and shares of such that were asked for again; older ones count less and less.
        self._n_left = self._n_returned = 0.0

    @property
    def return_rate(self) -> float:
        """How much of what leaves now will be asked for again, between 0 and 1."""
        return min(1.0, (self._n_returned + 1) / (self._n_left + PRIOR))

    def is_worth_copying(self, n_tokens: int, n_bytes: int) -> bool:
        """Whether a prefix of so many tokens, and bytes, is."""
        saved = self.return_rate * self._cost.of_prompt(n_tokens)
        return n_bytes * self._seconds / self._bytes <= saved

    def note_copy(self, n_bytes: int, seconds: float) -> None:
        """One was copied."""
        self._bytes = self._bytes * COPY_DECAY + n_bytes
        self._seconds = self._seconds * COPY_DECAY + seconds

    def note_skipped(self) -> None:
        """One was not, because it was not worth it."""
        self._seconds *= SKIP_DISCOUNT

    def note_left(self) -> None:
        """A prefix has left its cells, copied or not."""
        decay = 1 - 1 / WINDOW
        self._n_left = self._n_left * decay + 1
        self._n_returned *= decay

    def note_returned(self, share: float) -> None:
        """Such a `share` of one that had left was asked for, be there a copy or not."""
        self._n_returned += share
