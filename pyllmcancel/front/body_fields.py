"""The few fields of a body that choose its way, found without parsing the rest: its process parses it anyway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.forms import form_fields

# Possessive, so that a text without an end takes linear time.
STRING = rb'"(?:[^"\\]++|\\.)*+"'
TOP = re.compile(STRING + rb"|[{}\[\]:,]|[^\s{}\[\]:,\"]++", re.DOTALL)
BEGIN = re.compile(rb"\s*+\{")
NESTED = re.compile(STRING + rb"|[{}\[\]]", re.DOTALL)
MAX_VALUE = 8_192  # bytes of a value: longer ones name nothing


def scalars(body: bytes, wanted: frozenset[str]) -> dict[str, Any]:
    """Return the wanted fields of a JSON object, or of a form, that are texts, numbers, booleans or null.

    What is neither gives some of the fields, or none: the process that gets the body reports it. Of fields that are
    given twice the last one counts, as for the parser.
    """
    found: dict[str, Any] = {}
    if body.startswith(b"--"):  # as no JSON does
        return {name: value for name, value in form_texts(body).items() if name in wanted}
    for key, value in pairs(body):
        name = decoded(key) if b"\\" in key else key[1:-1].decode(errors="replace")
        if key.startswith(b'"') and name in wanted:
            found[name] = decoded(value)
    return found


def form_texts(body: bytes) -> dict[str, Any]:
    """Return the fields of a form that are texts, which may stand for numbers or booleans."""
    try:
        fields = form_fields(body, body[2:].partition(b"\r\n")[0])
    except ApiError:
        return {}
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and len(value) <= MAX_VALUE}
    return {name: {"true": True, "false": False}.get(value, value) for name, value in texts.items()}


def pairs(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the keys and scalar values of the outermost object."""
    key, tokens = b"", list[bytes]()
    if (begin := BEGIN.match(body)) is None:
        return
    at = begin.end()
    while (match := TOP.search(body, at)) is not None:
        at, token = match.end(), match[0]
        if token in (b"{", b"["):
            at = end_of_nested(body, at)
            tokens.clear()
        elif token in (b",", b"}"):
            if key and len(tokens) == 1:
                yield key, tokens[0]
            key, tokens = b"", []
            if token == b"}":
                return
        elif token == b":":
            key, tokens = (tokens[0] if len(tokens) == 1 else b""), []
        else:
            tokens.append(token)


def end_of_nested(body: bytes, at: int) -> int:
    """Return where the array or object ends that begins before `at`."""
    depth = 1
    for match in NESTED.finditer(body, at):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if not depth:
                return match.end()
    return len(body)


def decoded(text: bytes) -> Any:
    if len(text) > MAX_VALUE:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
