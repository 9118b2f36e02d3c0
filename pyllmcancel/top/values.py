"""Values from the network, checked: JSON allows numbers that no arithmetic survives."""

from __future__ import annotations

import json
import math
from typing import Any, TypeGuard

LARGEST = 1e15  # limit of a number: a float below it has an exact whole part, and a sum of a few cannot overflow


def read_json(text: str | bytes | bytearray) -> Any:
    """Return the JSON; None if the bytes are not JSON, or are nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def finite(value: Any) -> float:
    """Return the number; ValueError if it is not a number, or not below the limit."""
    if not is_number(value):
        raise ValueError("not a number of any use")
    return float(value)


def whole(value: Any) -> int:
    """As `finite`, without a fraction."""
    return int(finite(value))


def is_number(value: object) -> TypeGuard[float]:
    """Return whether it is a finite number below the limit."""
    return isinstance(value, int | float) and abs(value) < LARGEST and not math.isnan(value)
