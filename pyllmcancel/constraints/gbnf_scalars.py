"""Texts and whole numbers of schemas, in the form of llama.cpp's grammars."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, isnan
from typing import Any

from pyllmcancel.constraints.gbnf_pattern import gbnf_pattern
from pyllmcancel.constraints.schema_keywords import Lose, Part, Schema, inside, lose_given

FORMATS = frozenset(("date-time", "time", "date", "uuid"))
MAX_COUNTED = (1 << 31) - 1  # llama.cpp's limit
# llama.cpp writes whole numbers of at most 16 digits, and bounds of fewer.
LARGEST_NUMBER = 10**16 - 1
LARGEST_BOUND = 10**14
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def string_schema(parts: Sequence[Part], lose: Lose) -> Schema | None:
    """Return a pattern, a format or a length: llama.cpp enforces one of them."""
    found: Schema = {"type": "string"}
    for keyword in ("pattern", "format"):
        for schema, path in parts:
            value = schema.get(keyword)
            if value is None:
                continue
            known = _known(keyword, value)
            if known is None or len(found) > 1:
                lose(inside(path, keyword))
            else:
                found[keyword] = known
    limits = counted(parts, "minLength", "maxLength", lose)
    if len(found) == 1:
        return found | limits
    lose_given(parts, ("minLength", "maxLength"), lose, lambda _, value: value not in (None, 0))
    return found


def _known(keyword: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if keyword == "pattern":
        return gbnf_pattern(value)
    return value if value in FORMATS else None


def counted(parts: Sequence[Part], least_keyword: str, most_keyword: str, lose: Lose) -> dict[str, int]:
    """Return the lowest and the highest number of characters or values, as far as there are limits."""
    least, most = 0, None
    for schema, path in parts:
        for keyword in (least_keyword, most_keyword):
            if schema.get(keyword) is None:
                continue
            count = number(schema[keyword])
            if count is None or count < 0 or count != floor(count):
                lose(inside(path, keyword))
            elif keyword == least_keyword:
                least = max(least, int(count))
            else:
                most = int(count) if most is None else min(most, int(count))
    if least > MAX_COUNTED or (most is not None and least > most):
        lose_given(parts, (least_keyword, most_keyword), lose)
        return {}
    found = {least_keyword: least} if least else {}
    return found if most is None or most > MAX_COUNTED else {**found, most_keyword: most}


def integer_schema(parts: Sequence[Part], lose: Lose) -> Schema | None:
    """Return a whole number between its bounds, as far as llama.cpp supports their digits."""
    least, most = -inf, inf
    for schema, path in parts:
        for keyword in (*BOUNDS, "multipleOf"):
            value = schema.get(keyword)
            if value is None or value is False or (value is True and keyword.startswith("exclusive")):
                continue  # in the fourth draft a boolean says how to read the other bound
            bound = number(value)
            if bound is None or (keyword == "multipleOf" and bound != 1):
                lose(inside(path, keyword))
            elif keyword == "minimum":
                least = max(least, floor(bound) + 1 if schema.get("exclusiveMinimum") is True else ceil(bound))
            elif keyword == "exclusiveMinimum":
                least = max(least, floor(bound) + 1)
            elif keyword == "maximum":
                most = min(most, ceil(bound) - 1 if schema.get("exclusiveMaximum") is True else floor(bound))
            elif keyword == "exclusiveMaximum":
                most = min(most, ceil(bound) - 1)
    return _between(parts, least, most, lose)


def _between(parts: Sequence[Part], least: float, most: float, lose: Lose) -> Schema | None:
    found: Schema = {"type": "integer"}
    bounds = {"minimum": least if least > -LARGEST_NUMBER else None, "maximum": most if most < LARGEST_NUMBER else None}
    beyond = any(bound is not None and abs(bound) > LARGEST_BOUND for bound in bounds.values())
    if beyond or least > most:
        lose_given(parts, BOUNDS, lose, lambda *_: True)
        return found
    return found | {keyword: int(bound) for keyword, bound in bounds.items() if bound is not None}


def number(value: Any) -> int | float | None:
    """Return a number, even if it is written as a text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if not value.strip().lstrip("+-").isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value) or value in (inf, -inf):
        return None
    return value
