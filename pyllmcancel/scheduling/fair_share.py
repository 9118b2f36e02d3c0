"""Fair share between owners, and priorities within an owner: which choice starts, gives way, or has its prompt computed
next.

The owner that holds the fewest slots starts the next choice. A running choice gives its slot up for a choice of its own
owner that has a higher priority, or for an owner that holds at least two slots fewer. Owners take turns to have their
prompts computed.

Preemption terminates. It takes a slot from an owner with s slots and gives it to one with at most s - 2. The second
owner then has no more slots than the first one has left, so the first cannot take the slot back before a choice ends,
pauses or arrives. In between, each preemption reduces the sum of the squares of the owners' slots, or gives a slot of
one owner to a higher priority. Both are bounded, and choices that compute end after a bounded number of tokens.

Used by the engine thread only.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyllmcancel.requests.request import Choice, Request

MIN_EXCESS = 2  # an owner is preempted only by one that holds at least this many slots fewer


class Contender(Protocol):
    """A choice, or what stands for one in a forecast."""

    @property
    def request(self) -> Request: ...


C = TypeVar("C", bound=Contender)


class OwnersSteps(NamedTuple):
    """The last step that an owner took part in, and the last one that began with a prompt of the owner."""

    step: int = 0
    prompt_step: int = 0


class FairShare:
    """The order among owners, by their slots and the time of their last turn. With one owner: by priority, then age."""

    def __init__(self) -> None:
        self._n_starts = 0
        self._last_start: dict[str, int] = {}  # by owner, counted in starts
        self._n_steps = 0
        self.last: dict[str, OwnersSteps] = {}  # by owner; replaced as a whole

    # -- slots --------------------------------------------------------------------------------------------------------

    def copy(self) -> FairShare:
        """Return the order of starts as it is now, to be played on; may be called from any thread."""
        copied = FairShare()
        copied._n_starts, copied._last_start = self._n_starts, self._last_start.copy()
        return copied

    def next_start(self, candidates: Iterable[C], running: Iterable[Contender]) -> C | None:
        """Return the choice to start next: the first one of the highest priority, of the owner that holds the fewest
        slots.

        Among owners with equally many slots, the one whose last start is longest ago comes first.
        """
        best: dict[str, C] = {}
        for choice in candidates:
            rival = best.get(choice.request.owner)
            if rival is None or choice.request.priority > rival.request.priority:
                best[choice.request.owner] = choice
        held = slots_held(running)
        return min(
            best.values(),
            key=lambda choice: (held[choice.request.owner], self._last_start.get(choice.request.owner, 0)),
            default=None,
        )

    def note_start(self, choice: Contender) -> None:
        self._n_starts += 1
        self._last_start[choice.request.owner] = self._n_starts

    @staticmethod
    def preempted_for(choice: Contender, running: Sequence[C]) -> C | None:
        """Return which of the `running` choices, oldest first, has to give its slot up for `choice`, if any has to."""
        held, owner = slots_held(running), choice.request.owner
        if running and max(held.values()) >= held[owner] + MIN_EXCESS:
            return FairShare.first_to_go(running)
        lower = [
            other
            for other in running
            if other.request.owner == owner and other.request.priority < choice.request.priority
        ]
        return FairShare.first_to_go(lower) if lower else None

    @staticmethod
    def first_to_go(running: Sequence[C]) -> C:
        """Return the newest choice of the lowest priority, of the owner with the most slots.

        `running` is oldest first.
        """
        held = slots_held(running)
        newest_first = running[::-1]
        owner = max(newest_first, key=lambda choice: held[choice.request.owner]).request.owner
        own = (choice for choice in newest_first if choice.request.owner == owner)
        return min(own, key=lambda choice: choice.request.priority)

    # -- steps --------------------------------------------------------------------------------------------------------

    def in_order(self, prompts: Iterable[Choice]) -> list[Choice]:
        """Return the `prompts`, given oldest first, in the order in which to compute them: one of each owner in turn.

        The owner that has been in no step for longest comes first, decode steps included. So an owner that has only a
        long prompt does not wait for both the decode steps and the prompts of another. Within an owner the higher
        priority comes first, then the older request.
        """
        by_owner: dict[str, list[Choice]] = {}
        for choice in sorted(prompts, key=lambda choice: -choice.request.priority):
            by_owner.setdefault(choice.request.owner, []).append(choice)
        owners = sorted(by_owner, key=lambda owner: self.last.get(owner, OwnersSteps()))
        rounds = zip_longest(*(by_owner[owner] for owner in owners))
        return [choice for choice in chain.from_iterable(rounds) if choice is not None]

    def note_step(self, decoding: Iterable[Choice], prompt: Choice | None) -> None:
        """Note that a step is planned, with these choices that decode, and this prompt before others."""
        self._n_steps += 1
        last = dict(self.last)
        for choice in decoding:
            last[choice.request.owner] = last.get(choice.request.owner, OwnersSteps())._replace(step=self._n_steps)
        if prompt is not None:
            last[prompt.request.owner] = OwnersSteps(self._n_steps, self._n_steps)
        self.last = last


def slots_held(running: Iterable[Contender]) -> Counter[str]:
    """Return the number of slots by owner."""
    return Counter(choice.request.owner for choice in running)
