"""The keywords of JSON Schema, common mistakes included, and references, of which none leads outside the schema."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from types import NoneType
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

Schema = dict[str, Any]
Lose = Callable[[str], None]

ANY_OBJECT: Schema = {"type": "object", "additionalProperties": True}
ALTERNATIVES = ("anyOf", "oneOf")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# No grammar can express these.
NEVER = frozenset(("not", "if", "then", "else"))
NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
STRINGS = frozenset(("pattern", "format", "minLength", "maxLength"))
ARRAYS = frozenset(
    (
        *("items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "minItems", "maxItems"),
        *("uniqueItems", "unevaluatedItems"),
    )
)
OBJECTS = frozenset(
    (
        *("properties", "patternProperties", "additionalProperties", "propertyNames", "minProperties", "maxProperties"),
        *("required", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
    )
)
CONSTRAINTS = NEVER | NUMBERS | STRINGS | ARRAYS | OBJECTS | {*ALTERNATIVES, "type", "enum", "const"}

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
# Google's API writes types in capitals, Python and others use their own words.
ALIASES = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "map": "object",
    "none": "null",
    "str": "string",
    "text": "string",
    "tuple": "array",
} | {name: name for name in TYPES}
ANYTHING = frozenset(("any", "mixed", "type_unspecified"))
OF_VALUES: dict[type, set[str]] = {
    NoneType: {"null"},
    bool: {"boolean"},
    int: {"integer", "number"},
    str: {"string"},
    list: {"array"},
}
LARGEST = 1 << 63


class Part(NamedTuple):
    """A schema, or what stands in its place, and its path in the document."""

    schema: Any
    path: str = ""


class Resource(NamedTuple):
    """A part that has an identifier, and so pointers and anchors of its own."""

    uri: str
    root: Part


class References:
    """Finds the targets of one document's references. The document must not change."""

    def __init__(self, document: Any) -> None:
        self._whole = Resource("", Part(document))
        self._homes: dict[int, Resource] = {}  # of every object, by its `id()`
        self._named: dict[str, Part] = {}
        self._walk(document)

    def find(self, reference: Any, holder: Mapping[str, Any]) -> Part | None:
        """Return the part that `reference` names, which stands in the object `holder`."""
        if not isinstance(reference, str):
            return None
        home = self._homes.get(id(holder), self._whole)
        try:
            uri, fragment = urldefrag(urljoin(home.uri, reference))
        except ValueError:  # not an address
            return None
        if fragment and not fragment.startswith("/"):
            return self._named.get(f"{uri}#{unquote(fragment)}")
        # Some write the pointer of an anonymous document as if the document had a name.
        root = home.root if reference.startswith("#") else self._named.get(uri)
        return None if root is None else _pointed(root, fragment)

    def _walk(self, document: Any) -> None:
        todo = [(Part(document), self._whole)]
        while todo:
            part, home = todo.pop()
            if isinstance(part.schema, Mapping):
                home = self._home(part, home)
            todo += [(inner, home) for inner in _members(part)]

    def _home(self, part: Part, home: Resource) -> Resource:
        """Return the resource that this object belongs to, after its names are recorded."""
        own = part.schema.get("$id")
        if isinstance(own, str) and not own.startswith("#"):
            try:
                home = Resource(urldefrag(urljoin(home.uri, own))[0], part)
            except ValueError:
                pass
            else:
                self._named.setdefault(home.uri, part)
        self._homes[id(part.schema)] = home
        for keyword in ("$anchor", "$dynamicAnchor", "$id"):
            anchor = part.schema.get(keyword)
            if isinstance(anchor, str) and (keyword != "$id" or anchor.startswith("#")):
                self._named.setdefault(f"{home.uri}#{anchor.removeprefix('#')}", part)
        return home


def _members(part: Part) -> Iterator[Part]:
    if isinstance(part.schema, Mapping):
        yield from (Part(inner, inside(part.path, name)) for name, inner in part.schema.items())
    elif isinstance(part.schema, list):
        yield from (Part(inner, f"{part.path}[{place}]") for place, inner in enumerate(part.schema))


def _pointed(root: Part, pointer: str) -> Part | None:
    """Return the part that a JSON pointer leads to, or None."""
    found = root
    for step in pointer.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        value = found.schema
        if isinstance(value, Mapping) and name in value:
            found = Part(value[name], inside(found.path, name))
        elif isinstance(value, list) and name.isdecimal() and int(name[:9]) < len(value):
            found = Part(value[int(name[:9])], f"{found.path}[{int(name[:9])}]")
        else:
            return None
    return found


def inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def named(part: Part, keyword: str) -> Iterator[tuple[str, Part]]:
    """Return the schemas in an object."""
    value = part.schema.get(keyword)
    if isinstance(value, Mapping):
        yield from ((name, Part(each, f"{inside(part.path, keyword)}.{name}")) for name, each in value.items())


def listed(part: Part, keyword: str, lose: Lose) -> list[Part]:
    """Return the schemas in a list."""
    value = part.schema.get(keyword)
    if isinstance(value, list):
        return [Part(each, f"{inside(part.path, keyword)}[{place}]") for place, each in enumerate(value)]
    if value is not None:
        lose(inside(part.path, keyword))
    return []


def lose_given(
    parts: Sequence[Part],
    keywords: Collection[str],
    lose: Lose,
    asks: Callable[[str, Any], bool] = lambda _, value: value is not None,
) -> None:
    """Record as lost all of these keywords that are given, and ask for something."""
    for schema, path in parts:
        for keyword, value in schema.items():
            if keyword in keywords and asks(keyword, value):
                lose(inside(path, keyword))


def any_of(alternatives: Iterable[Schema | None]) -> Schema | None:
    """Return a schema for values that obey one of these; None if there are none."""
    found: list[Schema] = []
    for each in alternatives:
        if each == {}:
            return {}
        if each is not None and each not in found:
            found.append(each)
    if len(found) > 1:
        return {"anyOf": found}
    return found[0] if found else None


def types_of(parts: Sequence[Part], lose: Lose) -> list[str] | None:
    """Return the types that all parts allow, in order; None: any. The list may be empty."""
    found: list[str] | None = None
    for schema, path in parts:
        types = _types(schema, inside(path, "type"), lose)
        if types is not None:
            found = types if found is None else _common(found, types)
    return found


def _types(schema: Mapping[str, Any], path: str, lose: Lose) -> list[str] | None:
    value = schema.get("type")
    if value is None:
        return None
    names = [name.lower() for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]
    if ANYTHING.intersection(names):
        return None
    types = list(dict.fromkeys(ALIASES[name] for name in names if name in ALIASES))
    if len(types) < len(value if isinstance(value, list) else [value]) and len(set(names)) == len(names):
        lose(path)
    if not types:
        lose(path)
        return None
    if schema.get("nullable") is True and "null" not in types:  # OpenAPI's
        types.append("null")
    return [name for name in types if name != "integer" or "number" not in types]


def _common(one: list[str], other: list[str]) -> list[str]:
    both = [name for name in one if name in other]
    if ("integer" in one and "number" in other) or ("number" in one and "integer" in other):
        both.append("integer")
    return both


def guessed_types(parts: Sequence[Part]) -> list[str] | None:
    """Return the type that the other keywords belong to, as llama.cpp guesses it; None if there are none."""
    keywords = {keyword for schema, _ in parts for keyword, value in schema.items() if value is not None}
    for name, own in (("object", OBJECTS), ("array", ARRAYS), ("string", STRINGS), ("number", NUMBERS)):
        if keywords & own:
            return [name]
    return None


def value_types(value: Any) -> set[str]:
    """Return the types of a value."""
    if isinstance(value, float):
        return {"integer", "number"} if value.is_integer() else {"number"}
    return OF_VALUES.get(type(value), {"object"})


def is_exact(value: Any) -> bool:
    """Return whether llama.cpp writes this value unchanged: it rounds larger numbers."""
    match value:
        case bool() | None | str():
            return True
        case int():
            return -LARGEST <= value < LARGEST
        case float():
            return isfinite(value)
        case list():
            return all(map(is_exact, value))
    return all(map(is_exact, value.values()))


def are_apart(alternatives: Any) -> bool:
    """Return whether no value can obey two of them, as far as their types show; otherwise any of them may apply."""
    if not isinstance(alternatives, list):
        return False
    types = [each.get("type") if isinstance(each, Mapping) else None for each in alternatives]
    return all(isinstance(name, str) for name in types) and len(set(types)) == len(types)
