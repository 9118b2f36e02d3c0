"""Where llama.cpp's grammars of tool calls are wider than what a request asks for, they are narrowed here."""

from __future__ import annotations

import re
from functools import lru_cache

# Before a call that is required: a small model would go on with other text for ever.
FREE_TEXT = re.compile(r"(?<=\S) until-\d+\??((?: space)? tool-call(?:s|-root)?\)?)$", re.MULTILINE)
MESSAGES = re.compile(r"^root ::= \(start (?:any|analysis)\)\* start tool-call$", re.MULTILINE)
REASONED_CALL = "root ::= (start analysis)? start tool-call"
SEVERAL = re.compile(r"^tool-calls ::= \(tool-call\?? space\)\+$", re.MULTILINE)
# Names of formats, and numbers of calls, have no end: a small model would go on with them for ever.
CALL_NUMBER = re.compile(r'(\("functions\." "[^"\n]*" ":" \[0-9\])\+\)')
CONSTRAINT = ('"<|constrain|>"? [A-Za-z0-9_-]+', '"<|constrain|>"? [A-Za-z0-9_-]{1,32}')
ONE_CALL = "tool-calls ::= tool-call space"
# What llama.cpp's parser repeats at most; and where a repetition may not be one, because it is in a text or in a class.
MOST_REPETITIONS = 2_000
REPETITION = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{(\d+),?(\d*)\}')
# Names of rules are made of those of tools and of all properties around a value: longer ones are numbered instead.
LONGEST_NAME = 100
LONG_RULE = re.compile(rf"^([A-Za-z0-9-]{{{LONGEST_NAME},}}) ::=", re.MULTILINE)
LONG_NAME = re.compile(rf'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z0-9-]{{{LONGEST_NAME},}}')
# Texts between tags, as some models write arguments: all of their characters go.
RAW_TEXT = re.compile(r"^ac-\d+ ::=", re.MULTILINE)


@lru_cache(maxsize=16)  # a client's next request has the same tools: a millisecond of the GIL for a hundred of them
def narrowed(grammar: str, *, required: bool, parallel: bool) -> str:
    """With a call at once, or after reasoning, if one is `required`; and with one only, unless they are `parallel`.

    The lengths of texts and lists, which schemas may limit to any number, end where llama.cpp's parser gives up.
    """
    grammar = REPETITION.sub(_within_reach, _with_short_names(grammar))
    grammar = CALL_NUMBER.sub(r"\1{1,4})", grammar.replace(*CONSTRAINT))
    if required:
        grammar = MESSAGES.sub(REASONED_CALL, FREE_TEXT.sub(r"\1", grammar))
    return grammar if parallel else SEVERAL.sub(ONE_CALL, grammar)


def has_raw_texts(grammar: str) -> bool:
    """Return whether arguments that are texts are written as they are, whatever their schemas ask of them."""
    return RAW_TEXT.search(grammar) is not None


def _with_short_names(grammar: str) -> str:
    names = {name: f"rule-{number}" for number, name in enumerate(LONG_RULE.findall(grammar))}
    return LONG_NAME.sub(lambda found: names.get(found[0], found[0]), grammar) if names else grammar


def _within_reach(found: re.Match[str]) -> str:
    least, most = found[1], found[2]
    if least is None or int(most or least) <= MOST_REPETITIONS:
        return found[0]
    return f"{{{min(int(least), MOST_REPETITIONS)},}}"
