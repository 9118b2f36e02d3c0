"""The number of replicas that is needed, by waiting and running requests, and by cells in use.

Ray's own measure, requests per replica, ignores slots and the lengths of prompts. Ray's controller imports this module,
which is cheap to import, and does not import Ray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyllmcancel.requests.effects import Counts
    from pyllmcancel.scheduling.scheduler import Capacity, Occupancy

SLOTS, CELLS = "slots_wanted", "cells_in_use"  # the names of each replica's reports
TARGET = 0.8  # the share of its slots and cells that a replica should have in use


class Context(Protocol):
    """The part of Ray's `AutoscalingContext` that is used."""

    target_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


def load(counts: Counts, occupancy: Occupancy, capacity: Capacity) -> dict[str, float]:
    """Return the load that a replica reports: shares of its slots and of its cells.

    The share of slots is over 1 if requests wait. Cells of idle prefixes do not count as used, because they can be
    evicted.
    """
    return {
        SLOTS: (counts.waiting + counts.running) / max(1, capacity.slots),
        CELLS: occupancy.cells / max(1, capacity.cells),
    }


class Load:
    """The policy for Ray: enough replicas that each has at most `target` of its slots, and of its cells, in use.

    Ray itself applies the bounds, the delays and the factors of the ``autoscaling_config``.
    """

    def __init__(self, target: float = TARGET) -> None:
        if not 0.0 < target <= 1.0:
            raise ValueError(f"target must be over 0 and at most 1, not {target}")
        self._target = target

    def __call__(self, context: Context) -> tuple[float, dict[str, Any]]:
        """Return the number of replicas, and a state, which is empty."""
        metrics = context.aggregated_metrics or {}
        reports = [metrics[name].values() for name in (SLOTS, CELLS) if metrics.get(name)]
        if not reports:
            return context.target_num_replicas, {}  # no report yet: change nothing
        return max(self._enough_for(shares) for shares in reports), {}

    def _enough_for(self, shares: Iterable[float]) -> float:
        """Return the number that Ray rounds up. Without rounding off a mean's surplus digits, three replicas at the
        target would become four.
        """
        return round(sum(shares) / self._target, 6)
