"""Values of the types with which the official clients describe what they send: typed dictionaries, and their unions."""

import types
import typing
from collections.abc import Iterator
from typing import Any

from typing_extensions import is_typeddict

TEXT = "some_words"  # which may be a name, too
PLAIN = {str: TEXT, int: 1, float: 1.0, bool: True, object: {}}


def members(kind: Any) -> Iterator[Any]:
    """The types of a union, and of unions inside it; of a list, those of its entries."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        yield from members(inner[0])
    elif origin in (typing.Union, types.UnionType):
        for one in inner:
            yield from () if one is type(None) else members(one)
    else:
        yield kind


def made(kind: Any) -> Any:
    """A value of a type: of a union the first, and of a dictionary one with all that it may have."""
    kind = next(members(kind))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return inner[0]
    if origin is not None:
        return {} if issubclass(origin, dict) else [made(inner[0])]
    return PLAIN[kind] if kind in PLAIN else whole(kind)


def whole(kind: Any) -> dict[str, Any]:
    return {name: made(hint) for name, hint in typing.get_type_hints(kind).items()}


def variants(union: Any) -> Iterator[dict[str, Any]]:
    """Dictionaries of each type, and of each type that one of their fields may have, or a list in it."""
    seen = []
    for kind in filter(is_typeddict, members(union)):
        for name, hint in typing.get_type_hints(kind).items():
            for value in values(hint):
                one = whole(kind) | {name: value}
                if one not in seen:
                    seen.append(one)
                    yield one


def values(hint: Any) -> Iterator[Any]:
    for kind in members(hint):
        inner = typing.get_args(kind)
        is_list = typing.get_origin(kind) not in (None, typing.Literal, dict)
        if is_list and len(inner) == 1:
            yield from ([made(one)] for one in members(inner[0]))
        elif is_list or is_typeddict(kind) or typing.get_origin(kind) or kind in PLAIN:
            yield made(kind)
