"""Parameters of which most are left to ``pytest -m sweep``."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_long(values: Iterable[Any], *short: Any) -> list[Any]:
    """Return a test's parameters, all but those of the short run marked as a sweep; a tuple is several arguments."""
    found = list(values)
    if not short or any(value not in found for value in short):
        raise ValueError(f"not all are parameters: {short}")
    rest = pytest.mark.long, pytest.mark.sweep
    several = [(value, value if isinstance(value, tuple) else (value,)) for value in found]
    return [pytest.param(*values, marks=() if value in short else rest) for value, values in several]
