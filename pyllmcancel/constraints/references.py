"""References within a JSON schema: by pointers, anchors and identifiers. None leads outside the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin


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
