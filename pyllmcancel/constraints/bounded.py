"""Compiling with limits on time and memory: first in another process, unless the cost is certain to be small.

llguidance has limits for most features of schemas, but a call into it cannot be interrupted, and some calls never
return: `{"multipleOf": 123456789}`. Others end their process: `{"const": -9223372036854775808}` recurses until the
stack is full. A schema that has compiled in the other process compiles here in the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.helper import Helper, HelperEnded, HelperError
from pyllmcancel.pausing import Pause, no_pause

if TYPE_CHECKING:
    from pyllmcancel.constraints.guidance import Guidance, Guide

# Any schema of only these words, up to this number of characters, compiles in milliseconds.
KEYWORDS = "$schema additionalProperties const default description enum examples items properties required title type"
PLAIN = frozenset(KEYWORDS.split(" "))
SHORT = 4_096
DEEPEST = 20  # levels of schemas
MAX_LEVELS = 3 * DEEPEST  # of JSON: a property's schema is two levels down, and values may have levels of their own
MAX_PLAIN = 1 << 53
# OpenAI's object around a schema: as a schema it would allow anything.
WRAPPED = frozenset({"schema", "json_schema"})
WRAPPING = WRAPPED | {"name", "description", "strict", "type"}


class NamedSchema(NamedTuple):
    """A client's schema, and the field that it came in; `lenient` ignores parts that cannot be enforced."""

    schema: Mapping[str, Any]
    param: str
    lenient: bool = False


class NamedRule(NamedTuple):
    """A client's grammar, in llguidance's variant of Lark, and the field that it came in."""

    grammar: str
    param: str


class BoundedGuidance:
    """Compiles for one model. Any thread may call any method."""

    def __init__(self, guidance: Guidance) -> None:
        self._guidance = guidance
        self._helper = Helper("open_guidance")

    def prepare(self) -> None:
        """Start the process, and read the vocabulary while it starts; the first call waits for both."""
        self._helper.begin()
        _ = self._guidance.tokenizer

    def compile(self, named: NamedSchema, *, before: str = "", pause: Pause = no_pause) -> Guide:
        """Return the guide that follows a schema; InvalidRequestError if it cannot be compiled within the limits.

        `before` is an expression of llguidance's grammars for text that may stand before the answer. `pause` is called
        now and then, and ends the attempt by raising.
        """
        if named.schema.keys() & WRAPPED and named.schema.keys() <= WRAPPING:
            raise InvalidRequestError(
                f"{named.param} must be the schema itself, not an object with a schema in it", named.param
            )
        grammar = f"start: {before} answer\nanswer: {json_rule(named.schema, lenient=named.lenient)}"
        if is_plain(named.schema):
            self._guidance.check_schema(named.schema, named.param, lenient=named.lenient)
        else:
            self._try(named.param, pause, "compile_schema", dict(named.schema), named.lenient)
            self._try(named.param, pause, "compile_grammar", grammar)
        pause()
        return self._guidance.compile(grammar, named.param)

    def compile_rule(self, rule: NamedRule, pause: Pause = no_pause) -> Guide:
        """As `compile`, for a grammar that a client has written itself."""
        self._try(rule.param, pause, "compile_grammar", rule.grammar)
        pause()
        return self._guidance.compile(rule.grammar, rule.param)

    def close(self) -> None:
        self._helper.close()

    def _try(self, param: str, pause: Pause, name: str, *arguments: Any) -> None:
        try:
            self._helper.call(name, *arguments, pause=pause)
        except HelperError as error:
            why = f"it cannot be compiled: {error}" if isinstance(error, HelperEnded) else str(error)
            raise InvalidRequestError(why, param) from error


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is short, and contains nothing that could take long."""
    return len(repr(schema)) <= SHORT and _has_only_plain(schema, DEEPEST) and _is_plain_value(schema, MAX_LEVELS)


def _has_only_plain(schema: Any, depth: int) -> bool:
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, Mapping) or depth == 0 or not schema.keys() <= PLAIN:
        return False
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        return False
    inner = [schema[name] for name in ("additionalProperties", "items") if name in schema]
    return all(_has_only_plain(each, depth - 1) for each in (*inner, *properties.values()))


def _is_plain_value(value: Any, depth: int) -> bool:
    """Return whether all numbers of a value are small integers, and nothing in it is nested deeply."""
    if depth == 0:
        return False
    match value:
        case None | bool() | str():
            return True
        case int():
            return abs(value) < MAX_PLAIN
        case list():
            return all(_is_plain_value(each, depth - 1) for each in value)
        case Mapping():
            return all(_is_plain_value(each, depth - 1) for each in value.values())
        case _:
            return False
