"""How many replicas there should be: by the requests that wait and run, and by the cells in use.

Ray's own measure, requests per replica, knows neither slots nor how long prompts are. Imported by Ray's controller:
light, and without Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyllmcancel.requests.registry import Counts
    from pyllmcancel.scheduling.scheduler import Capacity, Occupancy

SLOTS, CELLS = "slots_wanted", "cells_in_use"  # what each replica reports
TARGET = 0.8  # of its slots and cells that a replica should have in use


class Context(Protocol):
    """The part of Ray's `AutoscalingContext` that is looked at."""

    target_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


def load(counts: Counts, occupancy: Occupancy, capacity: Capacity) -> dict[str, float]:
    """Return the load that a replica reports: shares of its slots and of its cells.

    The share of slots is over 1 where requests wait. Cells of idle prefixes are not in use: they make room.
    """
    return {
        SLOTS: (counts.waiting + counts.running) / max(1, capacity.slots),
        CELLS: occupancy.cells / max(1, capacity.cells),
    }


class Load:
    """Ray's policy: so many replicas that each has `target` of its slots, and of its cells, in use.

    Ray itself keeps to the bounds, the delays and the factors of the ``autoscaling_config``.
    """

    def __init__(self, target: float = TARGET) -> None:
        if not 0.0 < target <= 1.0:
            raise ValueError(f"target must be over 0 and at most 1, not {target}")
        self._target = target

    def __call__(self, context: Context) -> tuple[float, dict[str, Any]]:
        """How many, and a state, of which there is none."""
        metrics = context.aggregated_metrics or {}
        reports = [metrics[name].values() for name in (SLOTS, CELLS) if metrics.get(name)]
        if not reports:
            return context.target_num_replicas, {}  # nobody has reported yet: not the time to change anything
        return max(self._enough_for(shares) for shares in reports), {}

    def _enough_for(self, shares: Iterable[float]) -> float:
        """Ray rounds up. Without the digits that a mean has too many of, three replicas at the target would be four."""
        return round(sum(shares) / self._target, 6)
