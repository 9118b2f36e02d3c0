"""Compiling in bounded time and memory: tried in another process first, unless it is sure to cost little.

llguidance has limits for most of what a schema can ask, but a call into it cannot be interrupted, and some never
return: `{"multipleOf": 123456789}`. What has compiled over there compiles here in the same time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.errors import EngineClosedError, InvalidRequestError
from pyllmcancel.helper import Helper, HelperClosed, HelperEnded, HelperError
from pyllmcancel.pausing import Pause, no_pause

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from pyllmcancel.constraints.guidance import Guidance, Guide

# Of these words, in so many characters, any schema compiles in milliseconds.
KEYWORDS = "$schema additionalProperties const default description enum examples items properties required title type"
PLAIN = frozenset(KEYWORDS.split(" "))
SHORT = 4_096
DEEPEST = 20

Literal = Callable[[str], str]


class NamedSchema(NamedTuple):
    """A schema of a client's, and which field it came by; `lenient` passes over what cannot be enforced."""

    schema: Mapping[str, Any]
    param: str
    lenient: bool = False


class BoundedGuidance:
    """Compiles for one model. Any thread may call any method."""

    def __init__(self, guidance: Guidance) -> None:
        self._guidance = guidance
        self._helper = Helper("open_guidance")

    @property
    def tokenizer(self) -> LLTokenizer:
        return self._guidance.tokenizer

    def compile(
        self,
        schemas: Sequence[NamedSchema],
        grammar: Callable[[Literal], str],
        param: str,
        *,
        literal: Literal = json.dumps,
        pause: Pause = no_pause,
    ) -> Guide:
        """What follows a grammar.

        Parameters
        ----------
        schemas
            All that the grammar contains; each is tried alone, so that an error blames the right one.
        grammar
            Writes it, with a function that writes a text as an expression.
        literal
            That function, which may know control tokens of the model.
        pause
            Called now and then; ends the attempt by raising.

        Raises
        ------
        InvalidRequestError
            It cannot be compiled, or not within the limits.
        """
        if are_plain([named.schema for named in schemas]):
            for named in schemas:
                self._guidance.check_schema(named.schema, named.param, lenient=named.lenient)
        else:
            for named in schemas:
                self._try(named.param, pause, "compile_schema", dict(named.schema), named.lenient)
            self._try(param, pause, "compile_grammar", grammar(json.dumps))
        pause()
        return self._guidance.compile(grammar(literal), param)

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


def are_plain(schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Whether schemas are short, and have nothing that could take long."""
    return sum(len(repr(schema)) for schema in schemas) <= SHORT and all(_is_plain(each, DEEPEST) for each in schemas)


def _is_plain(schema: Any, depth: int) -> bool:
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, Mapping) or depth == 0 or not schema.keys() <= PLAIN:
        return False
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        return False
    inner = [schema[name] for name in ("additionalProperties", "items") if name in schema]
    return all(_is_plain(each, depth - 1) for each in (*inner, *properties.values()))
