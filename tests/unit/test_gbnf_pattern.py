"""Patterns of schemas, written anew for llama.cpp's grammars: the same texts match, as JSON spells them."""

import json
import random
import re

import pytest

from pyllmcancel._native import check_grammar
from pyllmcancel.constraints.gbnf_pattern import LONGEST, gbnf_pattern
from tests.support.gbnf_texts import Grammar


def allowed(pattern: str) -> list[str]:
    """Texts that the rewritten pattern allows, read as a rule as llama.cpp writes it."""
    written = gbnf_pattern(pattern)
    assert written is not None
    rule = f'root ::= "\\"" ({written[1:-1]}) "\\""'
    check_grammar(rule)
    grammar = Grammar(rule)
    return [json.loads(grammar.text("root", random.Random(seed))) for seed in range(50)]


@pytest.mark.parametrize(
    "pattern",
    [
        "^a$", "a", "^a", "a$", "^[a-z0-9_-]+$", r"^\d{4}-\d{2}-\d{2}$", "^.*$", "^.{2,4}$", "a|^b$", "^a|b$",
        "^(?:x|y){2,3}?$", "^(?P<year>[0-9]+)$", '^[^"]+$', r"^[\w.]+@[\w.]+$", r"^\x41\u0042$", r"^[\[\]\\]$",
        r"^\/api\/", "^(a|b(c|d)?)*$", "^[-a]$", "^[a-]$", r"^a\.b$", "^é😀$", "^[^a-z]?$", "", "^ $", "^a{3}b{1,}$",
    ],
)  # fmt: skip
def test_what_a_grammar_allows_matches(pattern: str) -> None:
    for text in allowed(pattern):
        assert re.search(pattern, text), text


@pytest.mark.parametrize("pattern", [r'"', r"\\", r"^\n$", r"^\s*$", "^[^x]*$"])
def test_characters_that_json_escapes_are_written_so(pattern: str) -> None:
    for text in allowed(pattern):
        assert re.search(pattern.replace(r"\s", r"[\s\ufeff]"), text), text


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "^[]$", "[z-a]", r"[a-\d]", "*", "^*$", "a**", "a{2}{3}", "{1}", "a^b", "$a", "(^a)",
        "(?=a)", "(?!a)", "(?<=a)", "(?i)a", r"\bword\b", r"(a)\1", r"\p{L}", r"\k<x>", "\\", "[\\", "(a*)*", "(a?|b)+",
        "(|a)", "()", r"\ud800", r"\u{110000}", "(" * 40 + "a" + ")" * 40, "a" * (LONGEST + 1), r"^[\x00]$",
    ],
)  # fmt: skip
def test_what_no_grammar_can_follow_is_none(pattern: str) -> None:
    assert gbnf_pattern(pattern) is None
