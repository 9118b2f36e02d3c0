"""Narrow llama.cpp's grammars of tool calls where they are wider than what a request asks for."""

from __future__ import annotations

import re

# Before a required call: a small model would go on with other text for ever.
FREE_TEXT = re.compile(r"(?<=\S) until-\d+\??((?: space)? tool-call(?:s|-root)?\)?)$", re.MULTILINE)
MESSAGES = re.compile(r"^root ::= \(start (?:any|analysis)\)\* start tool-call$", re.MULTILINE)
REASONED_CALL = "root ::= (start analysis)? start tool-call"
SEVERAL = re.compile(r"^tool-calls ::= \(tool-call\?? space\)\+$", re.MULTILINE)
# Names of formats, and numbers of calls, have no limit: a small model would go on with them for ever.
CALL_NUMBER = re.compile(r'(\("functions\." "[^"\n]*" ":" \[0-9\])\+\)')
CONSTRAINT = ('"<|constrain|>"? [A-Za-z0-9_-]+', '"<|constrain|>"? [A-Za-z0-9_-]{1,32}')
ONE_CALL = "tool-calls ::= tool-call space"
# The limit of repetitions in llama.cpp's parser, and the places where braces are not a repetition, in a text or a
# class.
MAX_REPETITIONS = 2_000
REPETITION = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{(\d+),?(\d*)\}')
# Names of rules are made of those of tools and of all properties around a value: long ones are replaced by numbers.
LONGEST_NAME = 100
LONG_RULE = re.compile(rf"^([A-Za-z0-9-]{{{LONGEST_NAME},}}) ::=", re.MULTILINE)
LONG_NAME = re.compile(rf'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z0-9-]{{{LONGEST_NAME},}}')
# Texts between tags, as some models write arguments, may contain any character.
RAW_TEXT = re.compile(r"^ac-\d+ ::=", re.MULTILINE)


def narrowed(grammar: str, *, required: bool, parallel: bool) -> str:
    """Return the grammar with a call at once or after reasoning if it is `required`, and with one call only unless
    `parallel`.

    Schemas may limit the lengths of texts and lists to any number, which is reduced to the limit of llama.cpp's parser.
    """
    grammar = REPETITION.sub(_within_reach, _with_short_names(grammar))
    grammar = CALL_NUMBER.sub(r"\1{1,4})", grammar.replace(*CONSTRAINT))
    if required:
        grammar = MESSAGES.sub(REASONED_CALL, FREE_TEXT.sub(r"\1", grammar))
    return grammar if parallel else SEVERAL.sub(ONE_CALL, grammar)


def has_raw_texts(grammar: str) -> bool:
    """Return whether arguments that are texts are written without regard to their schemas."""
    return RAW_TEXT.search(grammar) is not None


def _with_short_names(grammar: str) -> str:
    names = {name: f"rule-{number}" for number, name in enumerate(LONG_RULE.findall(grammar))}
    return LONG_NAME.sub(lambda found: names.get(found[0], found[0]), grammar) if names else grammar


def _within_reach(found: re.Match[str]) -> str:
    least, most = found[1], found[2]
    if least is None or int(most or least) <= MAX_REPETITIONS:
        return found[0]
    return f"{{{min(int(least), MAX_REPETITIONS)},}}"
