"""Values from the network, as they may be used: JSON knows numbers that no arithmetic survives."""

from __future__ import annotations

import json
import math
from typing import Any, TypeGuard

LARGEST = 1e15  # of a number: a float below has its whole part exactly, and no sum of a few overflows


def read_json(text: str | bytes | bytearray) -> Any:
    """None for what is no JSON, or is nested too deep to be read."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def finite(value: Any) -> float:
    """ValueError for what is no number, or is infinite, or as good as that."""
    if not is_number(value):
        raise ValueError("not a number of any use")
    return float(value)


def whole(value: Any) -> int:
    """As `finite`, without a fraction."""
    return int(finite(value))


def is_number(value: object) -> TypeGuard[float]:
    """Return whether it is a number, finite, and not larger than anything is."""
    return isinstance(value, int | float) and abs(value) < LARGEST and not math.isnan(value)
