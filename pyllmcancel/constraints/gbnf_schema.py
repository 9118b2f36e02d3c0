"""Schemas in the form of llama.cpp's grammars of tool calls, and the parts of them that cannot be enforced.

llama.cpp supports a part of JSON Schema, refuses some of the rest, and silently misreads the remainder: it ignores all
other keywords beside `anyOf`, and merges two tools' definitions of one name. The schemas made here, from any JSON at
all, contain only what llama.cpp reads as JSON Schema means it. Where no grammar can follow, the result is wider, and
the path of the lost part is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyllmcancel.constraints.gbnf_types import array_schema, integer_schema, object_schema, string_schema
from pyllmcancel.constraints.keywords import (
    ALTERNATIVES,
    ANY_OBJECT,
    CONSTRAINTS,
    NEVER,
    NUMBERS,
    REFERENCES,
    Part,
    References,
    Schema,
    any_of,
    are_apart,
    guessed_types,
    inside,
    is_exact,
    listed,
    lose_given,
    named,
    types_of,
    value_types,
)

ANYTHING: Schema = {"anyOf": [{}]}  # for places where llama.cpp treats an empty schema as none
DEEPEST = 32  # levels of nested objects and lists, through references
MAX_NODES = 4_000  # schemas of one tool: each adds a rule or more to its grammar
MAX_VALUES = 1_000  # values of an enumeration


class TooLargeError(Exception):
    """The schema is larger than a grammar may be."""


def arguments_schema(schema: Any, prefix: str = "d") -> tuple[Schema, list[str]]:
    """Return the schema of a tool's arguments for llama.cpp, and the paths of parts that it does not enforce.

    The schema may be any JSON. Definitions get names with this prefix: llama.cpp treats those of one name as the same,
    even in different tools.
    """
    if schema is None or schema == {}:
        return {"type": "object", "properties": {}}, []
    writer = _Writer(schema, prefix)
    return writer.written(writer.arguments, ANY_OBJECT)


def answer_schema(schema: Any) -> tuple[Schema, list[str]]:
    """As `arguments_schema`, for a whole answer, which may be any value."""
    writer = _Writer(schema, "d")
    return writer.written(writer.answer, ANYTHING)


def with_schemas(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a template, with the schemas that grammars follow; and what these schemas lack.

    The inputs' `tools` and `json_schema` may be any JSON. If `enforces_schemas` is false, arguments of tools may be any
    object: all schemas together are too much for one grammar. The results are the inputs with `tool_schemas`, beside
    the original tools, and what a `ChatForm` says to be unenforced.
    """
    tools = inputs.get("tools") or ()
    if inputs.get("enforces_schemas", True):
        ready = [arguments_schema(tool["function"].get("parameters"), f"t{n}d") for n, tool in enumerate(tools)]
    else:
        ready = []
    found = {**inputs, "tool_schemas": [schema for schema, _ in ready] or [ANY_OBJECT] * len(tools)}
    unenforced: dict[str, Any] = {"unenforced": [lost for _, lost in ready]}
    if inputs.get("json_schema") is not None:
        found["json_schema"], unenforced["unenforced_of_answer"] = answer_schema(inputs["json_schema"])
    return found, unenforced


def with_plain_schemas(tools: Sequence[Mapping[str, Any]], schemas: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the same tools with other schemas."""
    functions = [{**tool["function"], "parameters": schema} for tool, schema in zip(tools, schemas, strict=True)]
    return [{**tool, "function": function} for tool, function in zip(tools, functions, strict=True)]


class _Writer:
    """Rewrites one document's schema. Values obey all parts of a list; None, no schema at all, allows nothing."""

    def __init__(self, document: Any, prefix: str) -> None:
        self._document = document
        self._references = References(document)
        self._prefix = prefix
        self._n_nodes = 0
        self._names: dict[frozenset[int], str] = {}  # of the targets of references, by the ids of their parts
        self._definitions: dict[str, Schema | None] = {}
        self._open: set[str] = set()  # definitions that are being written, up to the next bracket
        self._kept: list[Any] = []  # copies whose ids are in use
        self.lost: dict[str, None] = {}  # the paths, in order

    def lose(self, path: str) -> None:
        self.lost[path] = None

    def written(self, write: Callable[[], Schema], anything: Schema) -> tuple[Schema, list[str]]:
        try:
            return write(), list(self.lost)
        except TooLargeError:
            return anything, [""]

    # -- what stands for all the arguments ----------------------------------------------------------------------------

    def arguments(self) -> Schema:
        """Return an object in any case, because some models' forms of calls name each argument."""
        parts, _ = self._flat([Part(self._document)])
        written = None if parts is None else object_schema(self, parts, self._united(parts))
        if written is None:
            self.lose("")
            written = ANY_OBJECT
        return self._defining(written)

    def answer(self) -> Schema:
        written = self._node([Part(self._document)], 0)
        if written is None:
            self.lose("")
        return self._defining(written or ANYTHING)

    def _defining(self, written: Schema) -> Schema:
        definitions = {name: each or {} for name, each in self._definitions.items()}
        return {**written, "$defs": definitions} if definitions else written

    def _united(self, parts: Sequence[Part]) -> dict[str, list[Part]]:
        """Return the properties of alternatives that all the arguments have, each with its possible schemas."""
        types = types_of(parts, self.lose)
        if types is not None and "object" not in types:
            self.lose(inside(next(path for schema, path in parts if "type" in schema), "type"))
        lose_given(parts, NEVER, self.lose)
        found: dict[str, list[Part]] = {}
        for keyword, alternatives in self._alternatives(parts):
            self.lose(keyword.path)
            for part in [part for each in alternatives for part in self._flat([each])[0] or ()]:
                for name, inner in named(part, "properties"):
                    found.setdefault(name, []).append(inner)
        lose_given(parts, ("enum", "const"), self.lose, lambda *_: True)
        return found

    # -- one schema ---------------------------------------------------------------------------------------------------

    def inner(self, parts: Sequence[Part], depth: int) -> Schema | None:
        """Return the schema of a value within brackets."""
        opened, self._open = self._open, set()
        found = self._node(parts, depth + 1)
        self._open = opened
        return found

    def _node(self, parts: Sequence[Part], depth: int) -> Schema | None:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise TooLargeError
        if depth > DEEPEST:
            self.lose(parts[0].path)
            return {}
        flat, is_referred = self._flat(parts)
        if flat is None:
            return None
        return self._referred(flat, depth) if is_referred and flat else self._choice(flat, depth)

    def _flat(self, parts: Sequence[Part]) -> tuple[list[Part] | None, bool]:
        """Return the parts with references and compositions resolved, or None, and whether there was a reference."""
        todo, found, seen, is_referred = list(parts), list[Part](), set[int](), False
        while todo:
            schema, path = todo.pop(0)
            if schema is False:
                return None, False
            if schema is None or schema is True or id(schema) in seen:
                continue
            if not isinstance(schema, Mapping):
                self.lose(path)
                continue
            seen.add(id(schema))
            targets = self._targets(Part(schema, path))
            is_referred |= bool(targets)
            todo += [*targets, *listed(Part(schema, path), "allOf", self.lose)]
            if "const" in schema or any(word in CONSTRAINTS and value is not None for word, value in schema.items()):
                found.append(Part(schema, path))
        return found, is_referred

    def _targets(self, part: Part) -> list[Part]:
        found = []
        for keyword in REFERENCES:
            if part.schema.get(keyword) is not None:
                target = self._references.find(part.schema[keyword], part.schema)
                if target is None:
                    self.lose(inside(part.path, keyword))
                else:
                    found.append(target)
        return found

    def _referred(self, parts: Sequence[Part], depth: int) -> Schema | None:
        """Return a reference to a definition, which may refer to itself."""
        key = frozenset(id(part.schema) for part in parts)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"{self._prefix}{len(self._names)}"
            self._open.add(name)
            self._definitions[name] = self._choice(parts, depth)
            self._open.discard(name)
        elif name in self._open:
            return None  # it would be only itself
        if name in self._definitions and self._definitions[name] is None:
            self.lose(parts[0].path)
            return None
        return {"$ref": f"#/$defs/{name}"}

    def _choice(self, parts: Sequence[Part], depth: int) -> Schema | None:
        """Return a choice of alternatives, each combined with all the rest."""
        every = self._alternatives(parts)
        if not every:
            return self._typed(parts, depth)
        (chosen, alternatives), *others = every
        for keyword, _ in others:
            self.lose(keyword.path)
        if chosen.path.endswith("oneOf") and not are_apart(chosen.schema):
            self.lose(chosen.path)
        done = {*ALTERNATIVES, *REFERENCES, "allOf"}
        rest = [Part({key: schema[key] for key in schema if key not in done}, path) for schema, path in parts]
        self._kept.append(rest)
        return any_of(self._node([*rest, each], depth + 1) for each in alternatives)

    def _alternatives(self, parts: Sequence[Part]) -> list[tuple[Part, list[Part]]]:
        """Iterate over the keywords that have alternatives, with these."""
        found = []
        for part in parts:
            for keyword in ALTERNATIVES:
                place = inside(part.path, keyword)
                if alternatives := listed(part, keyword, self.lose):
                    found.append((Part(part.schema[keyword], place), alternatives))
                elif part.schema.get(keyword) == []:
                    self.lose(place)
        return found

    def _typed(self, parts: Sequence[Part], depth: int) -> Schema | None:
        lose_given(parts, NEVER, self.lose)
        types = types_of(parts, self.lose)
        if values := self._values(parts, types):
            return {"enum": values}
        if types is None:
            types = guessed_types(parts)
        return {} if types is None else any_of(self._of_type(name, parts, depth) for name in types)

    def _values(self, parts: Sequence[Part], types: Sequence[str] | None) -> list[Any]:
        """Return the only values that are allowed; empty if others are allowed, too."""
        found: list[Any] | None = None
        for schema, path in parts:
            for keyword in ("const", "enum"):
                if keyword not in schema or (keyword == "enum" and schema[keyword] is None):
                    continue
                given = [schema[keyword]] if keyword == "const" else schema[keyword]
                fit = [
                    value
                    for value in (given if isinstance(given, list) else ())
                    if is_exact(value) and (types is None or value_types(value) & set(types))
                ]
                if found is not None:
                    fit = [value for value in fit if value in found]
                if not fit or len(fit) > MAX_VALUES:
                    self.lose(inside(path, keyword))
                else:
                    found = fit
        return found or []

    def _of_type(self, name: str, parts: Sequence[Part], depth: int) -> Schema | None:
        match name:
            case "object":
                return object_schema(self, parts, {}, depth)
            case "array":
                return array_schema(self, parts, depth)
            case "string":
                return string_schema(parts, self.lose)
            case "integer":
                return integer_schema(parts, self.lose)
            case "number":
                lose_given(parts, NUMBERS, self.lose, lambda _, value: value not in (None, False))
        return {"type": name}
