"""A model's own heads: layers that read its hidden state and guess the token after the next (multi-token prediction).

They draft as a draft model does, in a context of their own with an abort gate and cells of its own. Each token is
computed together with the hidden state from which the model chose it. The model's context keeps these states for the
last committed tokens of each sequence. So after a long prompt, or one whose cells came back from elsewhere, the heads
see the end of the text only. That may cost drafts, and never changes a token.

Used by the engine thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.drafting.sources import HEADS
from pyllmcancel.engine.draft_model import DraftModel, Place
from pyllmcancel.errors import Error
from pyllmcancel.step import StepItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel._native import CancelFlag, Model
    from pyllmcancel.requests.request import Choice

STATES_BYTES = 64 << 20  # of the hidden states of all sequences together
MIN_STATES = 64  # of a sequence


class Heads(DraftModel):
    """Proposes tokens for choices that decode, by the heads of their own model, in a context of heads.

    `model_context` keeps the model's hidden states.
    """

    source = HEADS
    name = "the model's heads"

    def reads(self, choice: Choice) -> bool:
        """Return whether the model has computed all of the choice's tokens but the last one, as it has in decode."""
        return choice.n_pending == 1 and self._first_of(choice) < choice.n_known

    def lag(self, choice: Choice) -> int:
        place = self._place_of(choice)
        if place is not None and self._goes_on(place, place.n_valid, choice):
            return choice.n_known - place.first - place.n_valid
        return choice.n_known - self._first_of(choice)

    def _first_of(self, choice: Choice) -> int:
        """Return the choice's first token that the heads could begin with: the first of all needs no state."""
        assert choice.seq is not None
        first_state = self._model_context.first_state(choice.seq)
        return first_state + 1 if first_state > 0 else 0

    def _goes_on(self, place: Place, n_valid: int, choice: Choice) -> bool:
        """Return whether the states after the place's first `n_valid` tokens are there."""
        return n_valid > 0 and place.first + n_valid >= self._first_of(choice)

    def _reusable(self, choice: Choice, places: Sequence[Place], tokens: Sequence[int]) -> list[int]:
        found = []
        for place in places:
            n_common = self._context.common_prefixes(tokens[place.first :])[place.seq]
            n_valid = min(n_common, place.n_valid)
            found.append(n_valid if self._goes_on(place, n_valid, choice) else 0)
        return found

    def _start(self, place: Place, choice: Choice, n_held: int, flag: CancelFlag) -> int:
        assert choice.seq is not None
        # The cells of drafted tokens were computed with the heads' own states: they are left out.
        n_valid = place.n_valid
        if self._goes_on(place, n_valid, choice):
            n_held = min(n_held, choice.n_known - place.first - 1)
            tokens = choice.tokens_from(place.first + n_held)
            n_valid = self._context.open(place.seq, tokens, place.sampler, flag, n_held=n_held, n_reusable=n_valid)
            if not self._goes_on(place, n_valid, choice):
                self._context.close(place.seq, keep=False)
                n_valid = 0
        else:
            n_valid = 0
        if n_valid == 0:
            place.first, place.n_valid = self._first_of(choice), 0
            if place.first >= choice.n_known:
                return 0
            self._context.open(place.seq, choice.tokens_from(place.first), place.sampler, flag, n_reusable=0)
        place.n_valid = n_valid
        n_pending = choice.n_known - place.first - n_valid
        try:
            self._context.follow(place.seq, self._model_context, choice.seq, first=place.first, n_tokens=n_pending)
        except (Error, MemoryError):
            self._context.close(place.seq, keep=False)
            raise
        return n_pending

    def _in_turn(self, items: list[StepItem]) -> tuple[list[StepItem], list[StepItem]]:
        """Compute the last token of each sequence in a step that has no others, as the heads' context wants it."""
        before = [item._replace(n_tokens=item.n_tokens - 1) for item in items if item.n_tokens > 1]
        return before, [item._replace(n_tokens=1) for item in items]


def n_states(model: Model, n_seq_max: int, n_cells: int) -> int:
    """Return the number of hidden states to keep of each sequence of the model's context."""
    return min(max(STATES_BYTES // (4 * model.n_embd * n_seq_max), MIN_STATES), n_cells)
