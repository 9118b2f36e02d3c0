"""Schemas of which a part cannot be enforced: refused if they are strict, else that part is told, and passed over."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyllmcancel.chat_grammar import has_raw_texts
from pyllmcancel.constraints.unenforced import gbnf_knows, guidance_knows, unenforced
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.request_context import request_id_of
from pyllmcancel.server.unknown_fields import spelled

if TYPE_CHECKING:
    from starlette.types import Scope

    from pyllmcancel.constraints.bounded import NamedSchema
    from pyllmcancel.constraints.unenforced import Knows
    from pyllmcancel.server.chat.tools import ToolPlan

logger = logging.getLogger("pyllmcancel.server")

OF_TEXTS = frozenset(("enum", "const", "pattern", "format", "minLength", "maxLength"))
MOST = 16  # paths that are told of one request
STATE = "unenforced"  # in a scope's state


def unenforced_of_answer(schema: NamedSchema) -> list[str]:
    """Of the schema of an answer; InvalidRequestError if it is strict."""
    return _checked(schema.schema, schema.param, guidance_knows, strict=not schema.lenient)


def unenforced_of_tools(plan: ToolPlan, grammar: str) -> list[str]:
    """Of the tools that an answer may call; InvalidRequestError if it is a part of a strict tool's schema.

    What no schema of this model's could ask is told only: some forms of calls have no grammar, and in others texts
    stand as they are.
    """
    found = [] if grammar else ["tools"]
    raw_texts = has_raw_texts(grammar)
    for place, tool in plan.tools:
        schema, strict = tool.function.parameters or {}, tool.function.strict is True
        param = f"tools[{place}].function.parameters"
        found += _checked(schema, param, gbnf_knows, strict=strict)
        if raw_texts:
            found += _checked(_texts_of(schema), param, lambda keyword, _: keyword not in OF_TEXTS, strict=False)
    return found


def _texts_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that are texts."""
    properties = schema.get("properties")
    every = properties.items() if isinstance(properties, Mapping) else ()
    return {"properties": {name: one for name, one in every if isinstance(one, Mapping) and _is_text(one)}}


def _is_text(schema: Mapping[str, Any]) -> bool:
    values = schema.get("enum") or [schema.get("const")]
    return schema.get("type") == "string" or (
        isinstance(values, list) and all(isinstance(value, str) for value in values)
    )


def note_unenforced(scope: Scope, paths: Sequence[str]) -> None:
    """Have them told in the log now, and with the answer to this request."""
    if paths:
        told = [spelled(path) for path in paths[:MOST]]
        scope["state"].setdefault(STATE, []).extend(told)
        request_id = request_id_of(scope)
        logger.warning("request %s: not enforced: %s", request_id, ", ".join(told), extra={"request_id": request_id})


def _checked(schema: Mapping[str, Any], param: str, knows: Knows, *, strict: bool) -> list[str]:
    found = list(islice(unenforced(schema, knows), MOST))
    if found and strict:
        raise InvalidRequestError(f"{found[0]} cannot be enforced, and the schema is strict", param)
    return [f"{param}.{path}" for path in found]
