"""Compiling in bounded time and memory: tried in another process first, unless it is sure to cost little.

llguidance has limits for most of what a schema can ask, but a call into it cannot be interrupted, and some never
return: `{"multipleOf": 123456789}`. What has compiled over there compiles here in the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.errors import EngineClosedError, InvalidRequestError
from pyllmcancel.helper import Helper, HelperClosed, HelperEnded, HelperError
from pyllmcancel.pausing import Pause, no_pause

if TYPE_CHECKING:
    from pyllmcancel.constraints.guidance import Guidance, Guide

# Of these words, in so many characters, any schema compiles in milliseconds.
KEYWORDS = "$schema additionalProperties const default description enum examples items properties required title type"
PLAIN = frozenset(KEYWORDS.split(" "))
SHORT = 4_096
DEEPEST = 20


class NamedSchema(NamedTuple):
    """A schema of a client's, and which field it came by; `lenient` passes over what cannot be enforced."""

    schema: Mapping[str, Any]
    param: str
    lenient: bool = False


class NamedRule(NamedTuple):
    """A grammar of a client's, in llguidance's variant of Lark, and which field it came by."""

    grammar: str
    param: str


class BoundedGuidance:
    """Compiles for one model. Any thread may call any method."""

    def __init__(self, guidance: Guidance) -> None:
        self._guidance = guidance
        self._helper = Helper("open_guidance")

    def prepare(self) -> None:
        """Start the process, and have the vocabulary read while that comes up; the first call waits for it."""
        self._helper.begin()
        _ = self._guidance.tokenizer

    def compile(self, named: NamedSchema, *, before: str = "", pause: Pause = no_pause) -> Guide:
        """Return the guide that follows a schema.

        Parameters
        ----------
        before
            Expression of llguidance's grammars for what may stand before it.
        pause
            Called now and then; ends the attempt by raising.

        Raises
        ------
        InvalidRequestError
            It cannot be compiled, or not within the limits.
        """
        grammar = f"start: {before} answer\nanswer: {json_rule(named.schema, lenient=named.lenient)}"
        if is_plain(named.schema):
            self._guidance.check_schema(named.schema, named.param, lenient=named.lenient)
        else:
            self._try(named.param, pause, "compile_schema", dict(named.schema), named.lenient)
            self._try(named.param, pause, "compile_grammar", grammar)
        pause()
        return self._guidance.compile(grammar, named.param)

    def compile_rule(self, rule: NamedRule, pause: Pause = no_pause) -> Guide:
        """As `compile`, of what a client has written itself."""
        self._try(rule.param, pause, "compile_grammar", rule.grammar)
        pause()
        return self._guidance.compile(rule.grammar, rule.param)

    def close(self) -> None:
        self._helper.close()

    def _try(self, param: str, pause: Pause, name: str, *arguments: Any) -> None:
        try:
            self._helper.call(name, *arguments, pause=pause)
        except HelperClosed as error:
            raise EngineClosedError(str(error)) from None
        except HelperEnded as error:
            raise InvalidRequestError(f"it cannot be compiled: {error}", param) from error
        except HelperError as error:
            raise InvalidRequestError(str(error), param) from error


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is short, and has nothing that could take long."""
    return len(repr(schema)) <= SHORT and _has_only_plain(schema, DEEPEST)


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
