"""Regular expressions of schemas, rewritten with the few constructs that llama.cpp's grammars have.

llama.cpp copies a pattern into a grammar nearly unchanged: `.` would match the quotation mark that ends a JSON text,
and classes such as that of digits are unknown to it. So every character is written here as a set of code points, and a
character that JSON escapes as its escape.
"""

from __future__ import annotations

import re

LONGEST = 1_000  # characters of a pattern
DEEPEST = 32  # levels of nested groups
HIGHEST = 0x10FFFF
ESCAPES = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}  # in JSON's escapes
CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
QUANTIFIER = re.compile(r"(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})")
CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}")
NAME = re.compile(r"\?(?::|P?<[A-Za-z_]\w*>)")

Ranges = list[tuple[int, int]]

DIGITS: Ranges = [(0x30, 0x39)]
WORDS: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
BLANKS: Ranges = [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
BLANKS += [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]


class UnknownPatternError(ValueError):
    """The pattern cannot be expressed in a grammar."""


def gbnf_pattern(pattern: str) -> str | None:
    """Return a pattern for llama.cpp that matches the same texts as a whole; None if there is none."""
    if len(pattern) > LONGEST:
        return None
    try:
        reader = _Reader(pattern)
        alternatives = reader.alternatives()
    except UnknownPatternError:
        return None
    return f"^{alternatives}$" if reader.at_end else None


class _Reader:
    """Reads a pattern once, and writes the new one."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._place = 0
        self._depth = 0
        self._may_be_empty = False  # about the element that was read last

    @property
    def at_end(self) -> bool:
        return self._place >= len(self._text)

    def alternatives(self) -> str:
        """Return the alternatives that `|` separates, until a group or the pattern ends."""
        found = [self._sequence()]
        may_be_empty = self._may_be_empty
        while self._takes("|"):
            found.append(self._sequence())
            may_be_empty |= self._may_be_empty
        self._may_be_empty = may_be_empty
        if len(found) == 1:
            return found[0]
        if not all(found):
            raise UnknownPatternError  # an empty alternative
        return "(" + "|".join(found) + ")"

    def _sequence(self) -> str:
        """Return one alternative. On the outermost level, parts without an anchor may stand anywhere in the text."""
        is_outer = self._depth == 0
        begins = is_outer and self._takes("^")
        parts: list[str] = []
        may_be_empty = True
        while not self.at_end and self._text[self._place] not in "|)":
            if is_outer and self._takes("$"):
                if not self.at_end and self._text[self._place] != "|":
                    raise UnknownPatternError
                return ("" if begins else ANYTHING) + "".join(parts)
            parts.append(self._repeated())
            may_be_empty &= self._may_be_empty
        self._may_be_empty = may_be_empty
        if not is_outer:
            return "".join(parts)
        return ("" if begins else ANYTHING) + "".join(parts) + ANYTHING

    def _repeated(self) -> str:
        atom = self._atom()
        quantifier = self._quantifier()
        if quantifier:
            if self._may_be_empty:
                raise UnknownPatternError  # a grammar that repeats nothing has no end
            self._may_be_empty = quantifier[0] in "*?" or quantifier.startswith("{0")
        return atom + quantifier

    def _atom(self) -> str:
        self._may_be_empty = False
        match self._next():
            case "(":
                return self._group()
            case "[":
                return _written(self._set())
            case ".":
                return _written(_others([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))
            case "\\":
                return _written(self._escape())
            case "^" | "$" | "*" | "+" | "?" | "{":
                raise UnknownPatternError
            case character:
                return _written([(ord(character), ord(character))])

    def _group(self) -> str:
        if named := NAME.match(self._text, self._place):
            self._place = named.end()
        elif self._takes("?"):
            raise UnknownPatternError  # look-around or flags
        self._depth += 1
        if self._depth > DEEPEST:
            raise UnknownPatternError
        inner = self.alternatives()
        self._depth -= 1
        if not inner or not self._takes(")"):
            raise UnknownPatternError
        return f"({inner})"

    def _quantifier(self) -> str:
        found = QUANTIFIER.match(self._text, self._place)
        if found is None:
            return ""
        self._place = found.end()
        self._takes("?")  # lazy: the same texts match
        if QUANTIFIER.match(self._text, self._place):
            raise UnknownPatternError
        return found[0]

    def _set(self) -> Ranges:
        negated = self._takes("^")
        found: Ranges = []
        while not self._takes("]"):
            first = self._set_item()
            follows = self._text[self._place : self._place + 2]
            if len(first) == 1 and first[0][0] == first[0][1] and follows[:1] == "-" and follows not in ("-", "-]"):
                self._place += 1
                last = self._set_item()
                if len(last) != 1 or last[0][0] != last[0][1] or last[0][0] < first[0][0]:
                    raise UnknownPatternError
                first = [(first[0][0], last[0][0])]
            found += first
        return _others(found) if negated else found

    def _set_item(self) -> Ranges:
        character = self._next()
        return self._escape() if character == "\\" else [(ord(character), ord(character))]

    def _escape(self) -> Ranges:
        if code := CODE.match(self._text, self._place):
            self._place = code.end()
            point = int(code[1] or code[2] or code[3], 16)
            if point > HIGHEST or 0xD800 <= point <= 0xDFFF:
                raise UnknownPatternError
            return [(point, point)]
        character = self._next()
        classes = {"d": DIGITS, "w": WORDS, "s": BLANKS}
        if character.lower() in classes:
            found = classes[character.lower()]
            return found if character.islower() else _others(found)
        if character in CONTROLS:
            return [(CONTROLS[character], CONTROLS[character])]
        if character.isalnum():
            raise UnknownPatternError  # boundaries, back references, character properties
        return [(ord(character), ord(character))]

    def _next(self) -> str:
        if self.at_end:
            raise UnknownPatternError
        self._place += 1
        return self._text[self._place - 1]

    def _takes(self, character: str) -> bool:
        taken = self._text.startswith(character, self._place)
        self._place += taken
        return taken


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
