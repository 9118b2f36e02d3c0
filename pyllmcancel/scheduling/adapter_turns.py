"""The turns of LoRA adapters: which of the running choices' sets of adapters computes the next step.

A step computes with one set of adapters, because llama.cpp's graph has one. Owners take turns to choose the set, and
the sets of an owner take turns: with m owners that have k sets each, every set has its turn within m * k steps. Owners
of the same set take part in each other's turns.

Used by the engine thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyllmcancel.adapters import Scales
    from pyllmcancel.requests.request import Choice


class Turns(NamedTuple):
    """The last step that an owner has chosen, and the last one that a set of adapters has computed."""

    owners: Mapping[str, int] = {}
    adapters: Mapping[Scales, int] = {}


class AdapterTurns:
    """The last turns of the owners and of the sets of adapters of running choices."""

    def __init__(self) -> None:
        self._n_steps = 0
        self._turns = Turns()
        self._planned = Turns()  # with the step that is planned
        self._before = Turns()  # without the last step, in case that step does not count

    def choose(self, running: Sequence[Choice]) -> list[Choice]:
        """Return those of the `running` choices that the next step may compute: all of them have the same adapters.

        A prompt waits while its owner has a prompt of a higher priority with other adapters.
        """
        sets = {choice.scales for choice in running}
        if len(sets) < 2:
            self._planned = Turns()
            return list(running)
        candidates = [choice for choice in running if not _waits(choice, running)]
        owners, adapters = self._turns
        owner = min((choice.request.owner for choice in candidates), key=lambda one: owners.get(one, 0))
        own = (choice.scales for choice in candidates if choice.request.owner == owner)
        scales = min(own, key=lambda one: adapters.get(one, 0))
        step = self._n_steps + 1
        # Clients choose the scales, so that sets are forgotten that nothing runs with.
        kept = {one: turn for one, turn in adapters.items() if one in sets}
        self._planned = Turns({**owners, owner: step}, {**kept, scales: step})
        return [choice for choice in candidates if choice.scales == scales]

    def note(self) -> None:
        """Note that the step is computed for which `choose` was called last."""
        self._n_steps += 1
        self._before, self._turns = self._turns, self._planned

    def undo(self) -> None:
        """Undo the last step, which did not count."""
        self._turns = self._before


def _waits(choice: Choice, running: Sequence[Choice]) -> bool:
    return choice.n_pending > 1 and any(
        other.n_pending > 1
        and other.request.owner == choice.request.owner
        and other.request.priority > choice.request.priority
        and other.scales != choice.scales
        for other in running
    )
