"""Regular expressions of schemas, rewritten with the few constructs that llama.cpp's grammars have.

llama.cpp copies a pattern into a grammar nearly unchanged: `.` would match the quotation mark that ends a JSON text,
and classes such as that of digits are unknown to it. So every character is written here as a set of code points, and a
character that JSON escapes as its escape. Python's own parser reads the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any
from warnings import catch_warnings

LONGEST = 1_000  # characters of a pattern
DEEPEST = 32  # levels of nested groups
MAX_REPETITIONS = 9_999
HIGHEST = 0x10FFFF
ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}  # in JSON's escapes
# Where ECMAScript and Python differ: code points, names of groups, classes of everything and of nothing, and a text
# that is a quantifier for Python only. Other escapes and classes are here to be left alone.
CODE_POINT = re.compile(r"\\u\{0*([0-9a-fA-F]{1,6})\}|\\.", re.DOTALL)
ECMA = re.compile(r"\(\?<(?=[A-Za-z_])|\{,\d*\}|\\.|\[(?:[^\]\\]|\\.)*\]", re.DOTALL)
QUANTIFIERS = {(0, sre.MAXREPEAT): "*", (1, sre.MAXREPEAT): "+", (0, 1): "?"}
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)  # a lazy one matches the same texts
BEGINNING, END = (sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_END)

Ranges = list[tuple[int, int]]

DIGITS: Ranges = [(0x30, 0x39)]
WORDS: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
BLANKS: Ranges = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
BLANKS += [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
LINE_ENDS: Ranges = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]


class UnknownPatternError(ValueError):
    """The pattern cannot be expressed in a grammar."""


def gbnf_pattern(pattern: str) -> str | None:
    """Return a pattern for llama.cpp that matches the same texts as a whole; None if there is none."""
    if len(pattern) > LONGEST:
        return None
    try:
        with catch_warnings(action="ignore"):
            parsed = _parser.parse(_as_python(pattern))
        return None if parsed.state.flags != re.UNICODE else f"^{_sequence(parsed, 0, begins=True, ends=True)}$"
    except (re.error, OverflowError, RecursionError, UnknownPatternError):
        return None


def _as_python(pattern: str) -> str:
    pattern = CODE_POINT.sub(lambda found: rf"\U{found[1]:0>8}" if found[1] else found[0], pattern)
    if any(found == "[]" or found.startswith("{") for found in ECMA.findall(pattern)):
        raise UnknownPatternError
    return ECMA.sub(lambda found: {"(?<": "(?P<", "[^]": r"[\s\S]"}.get(found[0], found[0]), pattern)


def _sequence(parsed: Sequence[Any], depth: int, *, begins: bool = False, ends: bool = False) -> str:
    """Return what stands one after the other. If the text `begins` or `ends` with it, further characters may stand
    there, unless there is an anchor.
    """
    items = list(parsed)
    if depth > DEEPEST:
        raise UnknownPatternError
    if begins and items[:1] == [BEGINNING]:
        items, begins = items[1:], False
    if ends and items[-1:] == [END]:
        items, ends = items[:-1], False
    if not items:
        return ANYTHING if begins or ends else ""
    last = len(items) - 1
    return "".join(
        _item(item, depth, begins=begins and place == 0, ends=ends and place == last)
        for place, item in enumerate(items)
    )


def _item(item: tuple[Any, Any], depth: int, *, begins: bool, ends: bool) -> str:
    kind, value = item
    if kind is not sre.BRANCH:
        return (ANYTHING if begins else "") + _atom(kind, value, depth) + (ANYTHING if ends else "")
    alternatives = [_sequence(each, depth + 1, begins=begins, ends=ends) for each in value[1]]
    if not any(alternatives):
        return ""
    # Python's parser makes ``x(?:|y)`` of ``x|xy``.
    return "(" + "|".join(filter(None, alternatives)) + (")" if all(alternatives) else ")?")


def _atom(kind: Any, value: Any, depth: int) -> str:
    match kind:
        case sre.LITERAL:
            return _written([(value, value)])
        case sre.NOT_LITERAL:
            return _written(_others([(value, value)]))
        case sre.ANY:
            return _written(_others(LINE_ENDS))
        case sre.IN:
            return _written(_set(value))
        case sre.SUBPATTERN if not (value[1] or value[2]) and (inner := _sequence(value[3], depth + 1)):
            return f"({inner})"
        case sre.MAX_REPEAT | sre.MIN_REPEAT:
            return _repeated(value, depth)
    raise UnknownPatternError  # such as look-around, boundaries, back references, flags


def _repeated(value: tuple[int, int, Any], depth: int) -> str:
    least, most, parsed = value
    limits = f"{least}" if least == most else f"{least}," if most == sre.MAXREPEAT else f"{least},{most}"
    # A grammar that repeats nothing has no end.
    if parsed.getwidth()[0] == 0 or max(map(int, filter(None, limits.split(",")))) > MAX_REPETITIONS:
        raise UnknownPatternError
    inner = _sequence(parsed, depth + 1)
    is_atom = len(parsed) == 1 and parsed[0][0] not in REPEATS
    return (inner if is_atom else f"({inner})") + QUANTIFIERS.get((least, most), f"{{{limits}}}")


def _set(items: Sequence[tuple[Any, Any]]) -> Ranges:
    found: Ranges = []
    for kind, value in items:
        if kind is sre.CATEGORY:
            found += CLASSES[value]
        elif kind is not sre.NEGATE:
            found.append(value if kind is sre.RANGE else (value, value))
    return _others(found) if items[0][0] is sre.NEGATE else found


def _others(ranges: Ranges) -> Ranges:
    """Return all characters but these."""
    found, lowest = [], 0
    for first, last in sorted(ranges):
        if first > lowest:
            found.append((lowest, first - 1))
        lowest = max(lowest, last + 1)
    return [*found, (lowest, HIGHEST)] if lowest <= HIGHEST else found


def _written(ranges: Ranges) -> str:
    """Return a set of characters as they stand in a JSON text, which escapes control characters and two more."""
    plain = [*((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)), *_others(ranges)]
    sets = []
    if points := _others(plain):
        sets.append("[" + "".join(_range(first, last) for first, last in points) + "]")
    if escapes := [ord(ESCAPES[point]) for point in ESCAPES if any(first <= point <= last for first, last in ranges)]:
        sets.append(r"[\x5C][" + "".join(_range(point, point) for point in escapes) + "]")
    if not sets:
        raise UnknownPatternError  # an empty set
    return sets[0] if len(sets) == 1 and points else "(" + "|".join(sets) + ")"


def _range(first: int, last: int) -> str:
    return _point(first) if first == last else f"{_point(first)}-{_point(last)}"


def _point(point: int) -> str:
    return f"\\x{point:02X}" if point < 0x100 else f"\\U{point:08X}"


ANYTHING = _written(_others([])) + "*"
CLASSES = {sre.CATEGORY_DIGIT: DIGITS, sre.CATEGORY_WORD: WORDS, sre.CATEGORY_SPACE: BLANKS}
CLASSES |= {sre.CATEGORY_NOT_DIGIT: _others(DIGITS), sre.CATEGORY_NOT_WORD: _others(WORDS)}
CLASSES[sre.CATEGORY_NOT_SPACE] = _others(BLANKS)
