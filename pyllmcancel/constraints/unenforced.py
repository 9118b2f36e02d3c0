"""The parts of a JSON schema that cannot be enforced while an answer is generated, and the schema without them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from pyllmcancel.constraints.keywords import are_apart

Knows = Callable[[str, Any], bool]

# Keywords whose value is a schema, a list of schemas, or an object of schemas.
SCHEMA = frozenset({"items", "additionalProperties", "additionalItems"})
SCHEMAS = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})

# All other keywords of JSON Schema are annotations, which ask for nothing.
GUIDANCE_IGNORES = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    )
)
GUIDANCE_FORMATS = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid")
)
# Look-around, back references, and word boundaries.
IRREGULAR = re.compile(r"\(\?<?[=!]|\\[1-9bB]|\(\?P=|\\k<")


def guidance_knows(keyword: str, value: Any) -> bool:
    """Return whether llguidance enforces the keyword."""
    match keyword:
        case "format":
            return isinstance(value, str) and value in GUIDANCE_FORMATS
        case "pattern":
            return isinstance(value, str) and not IRREGULAR.search(value)
        case "oneOf":
            return are_apart(value)
        case _:
            return keyword not in GUIDANCE_IGNORES


def unenforced(schema: Any, knows: Knows) -> Iterator[str]:
    """Return the paths of unknown parts, in the schema's order."""
    return (path for path, _, _ in _unknown(schema, knows))


def enforceable(schema: Any, knows: Knows) -> Any:
    """Return the schema without the unknown parts."""
    copied = deepcopy(schema)
    for _, holder, keyword in list(_unknown(copied, knows)):
        if keyword != "oneOf":  # without one alternative, a value still obeys one of them
            del holder[keyword]
    return copied


def _unknown(schema: Any, knows: Knows, path: str = "") -> Iterator[tuple[str, Any, str]]:
    """Return the unknown parts: the path of each, the object that has it, and its keyword."""
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        here = f"{path}.{keyword}" if path else keyword
        if not knows(keyword, value):
            yield here, schema, keyword
        for place, inner in _inner(keyword, value):
            yield from _unknown(inner, knows, here + place)


def _inner(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the schemas in a keyword's value, with the suffix of their path."""
    if keyword in NAMED_SCHEMAS and isinstance(value, Mapping):
        yield from ((f".{name}", each) for name, each in value.items())
    elif keyword in SCHEMA | SCHEMAS and isinstance(value, list):
        yield from ((f"[{place}]", each) for place, each in enumerate(value))
    elif keyword in SCHEMA:
        yield "", value
