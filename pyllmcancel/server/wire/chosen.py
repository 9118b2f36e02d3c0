"""``response_fields``: the fields of an answer that a client wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def chosen(whole: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values that `paths` name, each under its path. A path without a value is left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            found[path] = value
    return found
