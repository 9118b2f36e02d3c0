"""Texts that a grammar allows, by chance: what a model could write that knows nothing of what it writes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf

DEEP = 8  # rules inside each other; from there on the shortest way out is taken


@dataclass
class Rule:
    kind: str  # literal, set, rule, repeat, sequence, choice
    text: str = ""
    parts: list[Rule] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    negated: bool = False
    least: int = 0
    most: float = inf


class Grammar:
    """A grammar of rules in one line each, as llama.cpp writes them."""

    def __init__(self, text: str) -> None:
        lines = (line.split(" ::= ", 1) for line in text.splitlines() if " ::= " in line)
        self.rules = {name.strip(): _Reader(body).choice() for name, body in lines}
        self._depths: dict[str, float] = dict.fromkeys(self.rules, inf)
        for _ in self.rules:
            before = dict(self._depths)
            self._depths = {name: 1 + self._depth(rule) for name, rule in self.rules.items()}
            if before == self._depths:
                break

    def _depth(self, rule: Rule) -> float:
        match rule.kind:
            case "rule":
                return self._depths[rule.text]
            case "choice":
                return min(map(self._depth, rule.parts))
            case "repeat" if rule.least == 0:
                return 0
        return max(map(self._depth, rule.parts), default=0)

    def text(self, name: str, chance: random.Random, depth: int = 0) -> str:
        return self._text(self.rules[name], chance, depth)

    def _text(self, rule: Rule, chance: random.Random, depth: int) -> str:
        match rule.kind:
            case "literal":
                return rule.text
            case "set":
                return _character(rule, chance)
            case "rule":
                return self.text(rule.text, chance, depth + 1)
            case "sequence":
                return "".join(self._text(part, chance, depth) for part in rule.parts)
            case "repeat":
                most = rule.least if depth > DEEP else int(min(rule.most, rule.least + 2))
                count = chance.randint(rule.least, most)
                return "".join(self._text(rule.parts[0], chance, depth) for _ in range(count))
        ways = rule.parts
        if depth > DEEP:
            shortest = min(map(self._depth, ways))
            ways = [way for way in ways if self._depth(way) == shortest]
        return self._text(chance.choice(ways), chance, depth)


def _character(rule: Rule, chance: random.Random) -> str:
    if not rule.negated:
        return chr(chance.randint(*chance.choice(rule.ranges)))
    while True:
        point = chance.choice((chance.randint(0x20, 0x7E), chance.randint(0xA1, 0x2FFF)))
        if not any(first <= point <= last for first, last in rule.ranges):
            return chr(point)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def choice(self) -> Rule:
        ways = [self._sequence()]
        while self._takes("|"):
            ways.append(self._sequence())
        return Rule("choice", parts=ways)

    def _sequence(self) -> Rule:
        parts: list[Rule] = []
        while True:
            self._place += len(self._rest) - len(self._rest.lstrip(" "))
            if self._rest[:1] in ("", "|", ")"):
                return Rule("sequence", parts=parts)
            parts.append(self._repeated(self._item()))

    def _item(self) -> Rule:
        if self._takes('"'):
            text = ""
            while not self._takes('"'):
                text += self._character()
            return Rule("literal", text)
        if self._takes("["):
            return self._set()
        if self._takes("("):
            inner = self.choice()
            assert self._takes(")"), self._text
            return inner
        if self._takes("."):
            return Rule("set", negated=True)
        name = ""
        while self._rest[:1].isalnum() or self._rest[:1] in ("-", "_"):
            name += self._next()
        assert name, self._text
        return Rule("rule", name)

    def _set(self) -> Rule:
        found = Rule("set", negated=self._takes("^"))
        while not self._takes("]"):
            first = last = self._character()
            if self._rest[:1] == "-" and self._rest[1:2] != "]":
                self._next()
                last = self._character()
            found.ranges.append((ord(first), ord(last)))
        return found

    def _repeated(self, item: Rule) -> Rule:
        for sign, least, most in (("*", 0, inf), ("+", 1, inf), ("?", 0, 1)):
            if self._takes(sign):
                return Rule("repeat", parts=[item], least=least, most=most)
        if not self._takes("{"):
            return item
        numbers = ""
        while not self._takes("}"):
            numbers += self._next()
        lowest, comma, highest = numbers.partition(",")
        most = float(highest) if highest else inf if comma else int(lowest)
        return Rule("repeat", parts=[item], least=int(lowest), most=most)

    def _character(self) -> str:
        if not self._takes("\\"):
            return self._next()
        character = self._next()
        digits = {"x": 2, "u": 4, "U": 8}.get(character)
        if digits is None:
            return {"n": "\n", "t": "\t", "r": "\r"}.get(character, character)
        return chr(int("".join(self._next() for _ in range(digits)), 16))

    @property
    def _rest(self) -> str:
        return self._text[self._place :]

    def _next(self) -> str:
        self._place += 1
        return self._text[self._place - 1]

    def _takes(self, sign: str) -> bool:
        taken = self._text.startswith(sign, self._place)
        self._place += len(sign) * taken
        return taken
