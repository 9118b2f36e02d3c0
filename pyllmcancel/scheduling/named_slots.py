"""Slots as llama-server's clients know them, with what they have computed: `--slot-save-path`.

Here a slot has no memory of its own. Slot N of an owner has the prefix that the owner's last request with `id_slot` N
has left; a request without `id_slot` counts for the slot that its answer names. That prefix may lie in any sequence, or
in plain memory. Used by the engine thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.adapters import UNADAPTED, Adapted
from pyllmcancel.shares import Remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.requests.request import Choice

MAX_SLOTS = 1024  # of all owners together


class Left(NamedTuple):
    """The tokens that a choice has left, which are joined only when somebody asks for them, and the adapters that
    computed them.
    """

    parts: tuple[Sequence[int], ...]
    n_tokens: int
    adapted: Adapted = UNADAPTED

    def tokens(self) -> list[int]:
        return [token for part in self.parts for token in part][: self.n_tokens]


NOTHING = Left((), 0)


class NamedSlots:
    """The prefixes of slots, by owner and number."""

    def __init__(self) -> None:
        self._left = Remembered[int, Left](MAX_SLOTS)

    def note(self, choice: Choice, seq: int, n_committed: int) -> None:
        """Note that a choice leaves `n_committed` tokens in `seq`."""
        if choice.leads:
            number = number_of(choice)
            left = Left((choice.prompt, choice.generated, choice.certain), n_committed, choice.adapted)
            self._left.put(choice.request.owner, seq if number is None else number, left)

    def put(self, owner: str, number: int, tokens: Sequence[int], adapted: Adapted = UNADAPTED) -> None:
        """Have a slot hold these tokens; none empties it."""
        if tokens:
            self._left.put(owner, number, Left((tokens,), len(tokens), adapted))
        else:
            self._left.pop(owner, number)

    def get(self, owner: str, number: int | None) -> Left:
        """Return what a slot holds; nothing for no slot."""
        return (None if number is None else self._left.get(owner, number)) or NOTHING


def number_of(choice: Choice) -> int | None:
    """Return the slot that a choice's request names."""
    return choice.request.params.slot
