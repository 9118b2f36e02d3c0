"""Objects, lists, texts and whole numbers of schemas, in the form of llama.cpp's grammars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from math import ceil, floor, inf, isnan
from typing import Any, Protocol

from pyllmcancel.constraints.gbnf_pattern import gbnf_pattern
from pyllmcancel.constraints.keywords import ANY_OBJECT, Lose, Part, Schema, any_of, inside, listed, lose_given, named

MAX_OPTIONAL = 150  # properties of one object: llama.cpp's time grows with the third power of their number
MAX_ITEMS = 100  # items of a list in which each has its own schema
LONGEST_NAME = 256  # characters of a property's name
# If other properties may follow, llama.cpp writes the names that they must not have within brackets.
UNBRACKETED = re.compile(r'^$|[\]\\^"\x00-\x1f]')
OF_OBJECTS = (
    *("minProperties", "maxProperties", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)
OF_ARRAYS = ("contains", "minContains", "maxContains", "uniqueItems")
FORMATS = frozenset(("date-time", "time", "date", "uuid"))
MAX_COUNTED = (1 << 31) - 1  # llama.cpp's limit
# llama.cpp writes whole numbers of at most 16 digits, and bounds of fewer.
LARGEST_NUMBER = 10**16 - 1
LARGEST_BOUND = 10**14
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class Writer(Protocol):
    """Writes the schemas within; see `gbnf_schema`."""

    def lose(self, path: str) -> None: ...

    def inner(self, parts: Sequence[Part], depth: int) -> Schema | None: ...


def object_schema(
    writer: Writer, parts: Sequence[Part], others: Mapping[str, Sequence[Part]], depth: int = 0
) -> Schema | None:
    """Return a schema of objects that obey all parts, with `others`: properties that obey one of their parts."""
    lose_given(parts, OF_OBJECTS, writer.lose, _asks)
    given = _given(writer, parts)
    properties = {name: writer.inner(inner, depth) for name, inner in given.items()}
    for name, alternatives in others.items():
        if name not in given:
            properties[name] = any_of(writer.inner([each], depth) for each in alternatives)
    is_closed = any(_of_others(part, parts) in (False, "false") for part in parts)
    additional = _additional(writer, parts, {*given, *others}, is_closed=is_closed, depth=depth)
    is_bare = all(schema.get("properties") is None for schema, _ in parts)
    if additional is None and not is_closed and not others and is_bare:
        additional = {}
    required: dict[str, None] = {}
    for name, path in _required(writer, parts, given):
        if name not in properties and (is_closed or len(name) > LONGEST_NAME):
            writer.lose(path)
        else:
            required[name] = None
            properties.setdefault(name, {} if additional is None else additional)
    if any(properties[name] is None for name in required):
        return None
    for name, inner in given.items():
        if properties[name] is None and additional is not None:
            writer.lose(inner[0].path)
    possible = {name: each for name, each in properties.items() if each is not None}
    return _written(writer, parts, possible, required, additional)


def _given(writer: Writer, parts: Sequence[Part]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        value = part.schema.get("properties")
        if not isinstance(value, Mapping) and value not in (None, []):  # PHP's empty object is an empty list
            writer.lose(inside(part.path, "properties"))
        for name, inner in named(part, "properties"):
            if len(name) > LONGEST_NAME:
                writer.lose(inside(part.path, "properties"))
            else:
                found.setdefault(name, []).append(inner)
    return found


def _required(writer: Writer, parts: Sequence[Part], given: Mapping[str, Sequence[Part]]) -> Iterator[tuple[str, str]]:
    """Return the required names, with the place of the requirement."""
    for schema, path in parts:
        value = schema.get("required")
        place = inside(path, "required")
        if isinstance(value, list) and all(isinstance(name, str) for name in value):
            yield from ((name, place) for name in value)
        elif value is not None and not isinstance(value, bool):
            writer.lose(place)
    for name, inner in given.items():  # the third draft requires a property inside the property's schema
        for schema, path in inner:
            if isinstance(schema, Mapping) and schema.get("required") is True:
                yield name, path


def _of_others(part: Part, parts: Sequence[Part]) -> Any:
    """Return a part's schema for properties that it does not name."""
    value = part.schema.get("additionalProperties")
    return part.schema.get("unevaluatedProperties") if value is None and len(parts) == 1 else value


def _additional(
    writer: Writer, parts: Sequence[Part], names: Set[str], *, is_closed: bool, depth: int
) -> Schema | None:
    """Return the schema of properties with other names; None: there are none."""
    schemas, is_open = [], False
    for part in parts:
        schema, path = part
        value = _of_others(part, parts)
        is_given = schema.get("additionalProperties") is not None
        place = inside(path, "additionalProperties" if is_given else "unevaluatedProperties")
        if isinstance(value, Mapping):
            schemas.append(Part(value, place))
        elif value not in (None, True, False, "true", "false"):
            writer.lose(place)
        is_open |= value in (True, "true")
        unnamed = names - {name for name, _ in named(part, "properties")}
        if unnamed and value not in (None, True, "true"):
            writer.lose(place)  # it also applies to properties that only another part names
        if len(parts) > 1 and schema.get("unevaluatedProperties") not in (None, True):
            writer.lose(inside(path, "unevaluatedProperties"))
    patterns = []
    for part in parts:
        matching = [inner for _, inner in named(part, "patternProperties")]
        if matching or part.schema.get("patternProperties") not in (None, {}, []):
            writer.lose(inside(part.path, "patternProperties"))
        patterns += matching
    allowed = {} if is_open and not schemas else writer.inner(schemas, depth) if schemas else None
    if not patterns:
        return None if is_closed else allowed
    if not is_closed and not schemas:
        return {}
    return any_of([*(writer.inner([each], depth) for each in patterns), None if is_closed else allowed])


def _written(
    writer: Writer,
    parts: Sequence[Part],
    properties: dict[str, Schema],
    required: Mapping[str, None],
    additional: Schema | None,
) -> Schema:
    optional = [name for name in properties if name not in required]
    if len(optional) > MAX_OPTIONAL:
        lose_given(parts, ("properties",), writer.lose)
        for name in optional[MAX_OPTIONAL:]:
            del properties[name]
        additional = {}
    if additional is not None and any(map(UNBRACKETED.search, properties)):
        additional = None
    if not properties and additional == {}:
        return ANY_OBJECT
    found: Schema = {"type": "object", "properties": properties, "required": list(required)}
    return found | {"additionalProperties": False if additional is None else True if additional == {} else additional}


def array_schema(writer: Writer, parts: Sequence[Part], depth: int) -> Schema | None:
    """Return a schema of lists that obey all parts."""
    lose_given(parts, OF_ARRAYS, writer.lose, _asks)
    rows = [_row(writer, part, is_alone=len(parts) == 1) for part in parts]
    limits = counted(parts, "minItems", "maxItems", writer.lose)
    least, most = limits.get("minItems", 0), limits.get("maxItems")
    first = max((len(one_by_one) for one_by_one, _ in rows), default=0)
    if first > 0 and max(first, least) <= MAX_ITEMS:
        length = max(least, first if most is None else min(first, most))
        return _tuple(writer, [_at(rows, place) for place in range(length)], least, depth)
    for one_by_one, _ in rows:
        for inner in one_by_one[:1]:
            writer.lose(inner.path)
    rest = _at(rows, first) if first == 0 else []
    item = writer.inner(rest, depth) if rest else {}
    if item is None:
        return None if least else {"type": "array", "items": {}, "maxItems": 0}
    return {"type": "array", "items": item, **limits}


def _row(writer: Writer, part: Part, *, is_alone: bool) -> tuple[list[Part], Part | None]:
    """Return the parts that the first values obey, one by one, and the part that all others obey."""
    schema, path = part
    is_tuple = isinstance(schema.get("items"), list)
    one_by_one = listed(part, "items" if is_tuple else "prefixItems", writer.lose)
    keyword = "additionalItems" if is_tuple else "items"
    if schema.get(keyword) is None and is_alone:
        keyword = "unevaluatedItems"
    if not is_alone and schema.get("unevaluatedItems") not in (None, True):
        writer.lose(inside(path, "unevaluatedItems"))
    rest = schema.get(keyword)
    return one_by_one, None if rest is None else Part(rest, inside(path, keyword))


def _at(rows: Sequence[tuple[list[Part], Part | None]], place: int) -> list[Part]:
    """Return all parts that the value in this place obeys."""
    every = [one_by_one[place] if place < len(one_by_one) else rest for one_by_one, rest in rows]
    return [part for part in every if part is not None]


def _tuple(writer: Writer, places: Sequence[list[Part]], least: int, depth: int) -> Schema | None:
    """Return a list in which each value has its own schema. llama.cpp writes exactly these values."""
    items: list[Schema] = []
    for parts in places:
        item = writer.inner(parts, depth) if parts else {}
        if item is None:
            break
        items.append(item)
    if len(items) < least:
        return None
    return {"type": "array", "prefixItems": items} if items else {"type": "array", "items": {}, "maxItems": 0}


def _asks(keyword: str, value: Any) -> bool:
    if keyword == "uniqueItems":
        return value is True
    if value is None or keyword.startswith("min"):
        return value is True or value not in (None, 0)
    return keyword in ("contains", "maxProperties", "maxContains") or not (value is True or value in ({}, []))


def string_schema(parts: Sequence[Part], lose: Lose) -> Schema | None:
    """Return a pattern, a format or a length: llama.cpp enforces one of them."""
    found: Schema = {"type": "string"}
    for keyword in ("pattern", "format"):
        for schema, path in parts:
            value = schema.get(keyword)
            if value is None:
                continue
            known = _known(keyword, value)
            if known is None or len(found) > 1:
                lose(inside(path, keyword))
            else:
                found[keyword] = known
    limits = counted(parts, "minLength", "maxLength", lose)
    if len(found) == 1:
        return found | limits
    lose_given(parts, ("minLength", "maxLength"), lose, lambda _, value: value not in (None, 0))
    return found


def _known(keyword: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if keyword == "pattern":
        return gbnf_pattern(value)
    return value if value in FORMATS else None


def counted(parts: Sequence[Part], least_keyword: str, most_keyword: str, lose: Lose) -> dict[str, int]:
    """Return the lowest and the highest number of characters or values, as far as there are limits."""
    least, most = 0, None
    for schema, path in parts:
        for keyword in (least_keyword, most_keyword):
            if schema.get(keyword) is None:
                continue
            count = number(schema[keyword])
            if count is None or count < 0 or count != floor(count):
                lose(inside(path, keyword))
            elif keyword == least_keyword:
                least = max(least, int(count))
            else:
                most = int(count) if most is None else min(most, int(count))
    if least > MAX_COUNTED or (most is not None and least > most):
        lose_given(parts, (least_keyword, most_keyword), lose)
        return {}
    found = {least_keyword: least} if least else {}
    return found if most is None or most > MAX_COUNTED else {**found, most_keyword: most}


def integer_schema(parts: Sequence[Part], lose: Lose) -> Schema | None:
    """Return a whole number between its bounds, as far as llama.cpp supports their digits."""
    least, most = -inf, inf
    for schema, path in parts:
        for keyword in (*BOUNDS, "multipleOf"):
            value = schema.get(keyword)
            if value is None or value is False or (value is True and keyword.startswith("exclusive")):
                continue  # in the fourth draft a boolean says how to read the other bound
            bound = number(value)
            if bound is None or (keyword == "multipleOf" and bound != 1):
                lose(inside(path, keyword))
            elif keyword == "minimum":
                least = max(least, floor(bound) + 1 if schema.get("exclusiveMinimum") is True else ceil(bound))
            elif keyword == "exclusiveMinimum":
                least = max(least, floor(bound) + 1)
            elif keyword == "maximum":
                most = min(most, ceil(bound) - 1 if schema.get("exclusiveMaximum") is True else floor(bound))
            elif keyword == "exclusiveMaximum":
                most = min(most, ceil(bound) - 1)
    return _between(parts, least, most, lose)


def _between(parts: Sequence[Part], least: float, most: float, lose: Lose) -> Schema | None:
    found: Schema = {"type": "integer"}
    bounds = {"minimum": least if least > -LARGEST_NUMBER else None, "maximum": most if most < LARGEST_NUMBER else None}
    beyond = any(bound is not None and abs(bound) > LARGEST_BOUND for bound in bounds.values())
    if beyond or least > most:
        lose_given(parts, BOUNDS, lose, lambda *_: True)
        return found
    return found | {keyword: int(bound) for keyword, bound in bounds.items() if bound is not None}


def number(value: Any) -> int | float | None:
    """Return a number, even if it is written as a text; None for anything else."""
    if isinstance(value, str):
        try:
            value = float(value) if not value.strip().lstrip("+-").isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value) or value in (inf, -inf):
        return None
    return value
