"""Workers that leave, or do not answer: others go on with their requests, as soon as there are others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllmcancel.front.places import Claim

if TYPE_CHECKING:
    from pyllmcancel.front.worker import Worker


class Leaving:
    """Used in the event loop only.

    Parameters
    ----------
    has_other
        Returns whether another worker takes requests.
    """

    def __init__(self, has_other: Callable[[Claim], bool]) -> None:
        self._has_other = has_other
        self._workers: dict[Worker, bool] = {}  # and if each is silent

    def note(self, worker: Worker, *, silent: bool) -> None:
        self._workers[worker] = silent

    def forget(self, worker: Worker) -> None:
        """Note that a worker answers again, or has ended. Idempotent."""
        self._workers.pop(worker, None)

    def give_away(self) -> None:
        """Have others go on, where there are any now."""
        for worker, silent in list(self._workers.items()):
            if self._has_other(Claim(worker.model, avoids=frozenset({worker.name}))):
                del self._workers[worker]
                worker.give_away(silent=silent)

    def end(self, worker: Worker) -> None:
        """Note that a worker is not used any more: if it is silent, nothing is to be expected of it."""
        if self._workers.get(worker, False):
            del self._workers[worker]
            worker.give_away(silent=True)
