"""Percentiles and distributions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

PERCENTS = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the percentile, interpolated between the two nearest ranks; None without values."""
    return float(np.percentile(values, percent)) if len(values) else None


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of the measured values. None if a value is missing: a median of the rest would flatter."""
    known = [value for value in values if value is not None]
    return percentile(known, 50) if len(known) == len(values) else None


def distribution(values: Iterable[float | None], scale: float = 1.0) -> dict[str, float | int | None]:
    """Return the number of the known values, their mean, p50, p90, p99, smallest and largest, each times `scale`."""
    known = [value * scale for value in values if value is not None]
    found: dict[str, float | int | None] = {"n": len(known), "mean": sum(known) / len(known) if known else None}
    found |= {f"p{percent}": percentile(known, percent) for percent in PERCENTS}
    return found | {"min": min(known, default=None), "max": max(known, default=None)}
