"""The compiled core's check of a JSON text's size, before it is parsed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel._native import json_excess

PLENTY = {"values": 10**9, "depth": 10**6, "fields": 10**6}
VALUES, FEW_VALUES = (
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
        max_leaves=most,
    )
    for most in (40, 3)
)


def n_values(value: Any) -> int:
    """As they are counted: keys too, and what is empty twice."""
    match value:
        case []:
            return 2
        case dict() if not value:
            return 2
        case list():
            return 1 + sum(map(n_values, value))
        case dict():
            return 1 + sum(1 + n_values(part) for part in value.values())
        case _:
            return 1


def depth_of(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max(map(depth_of, parts), default=0)


@given(VALUES, st.booleans())
def test_just_so_many_values_and_levels_are_no_excess_and_one_less_is(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    many, deep = n_values(value), depth_of(value)
    assert json_excess(text, **PLENTY | {"values": many, "depth": deep}) is None
    if many > 1:
        assert json_excess(text, **PLENTY | {"values": many - 1})[0] == "values"  # type: ignore[index]
    if deep:
        assert json_excess(text, **PLENTY | {"depth": deep - 1})[0] == "depth"  # type: ignore[index]


@given(st.dictionaries(st.text(), FEW_VALUES, min_size=1, max_size=8))
def test_the_fields_are_those_of_the_outermost_object(body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    assert json_excess(text, **PLENTY | {"fields": len(body)}) is None
    last = json.dumps(list(body)[-1])[1:-1].encode()
    assert json_excess(text, **PLENTY | {"fields": len(body) - 1}) == ("fields", last)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'{"a": 1, "b": [1, 2, 3]}', b"b"),
        (b'{"a": "x:", "b" : {"c": [1, 2, 3]}}', b"b"),
        (b'{"a": 1, "b\\"c": [1, 2, 3]}', b'b\\"c'),
        (b"[1, 2, 3, 4, 5, 6, 7]", b""),
    ],
)
def test_what_has_too_many_values_is_named_by_its_key(text: bytes, key: bytes) -> None:
    assert json_excess(text, **PLENTY | {"values": 6}) == ("values", key)


@given(st.binary(max_size=60))
def test_what_is_no_json_is_looked_at_without_harm(text: bytes) -> None:
    json_excess(text, values=5, depth=2, fields=2)


@pytest.mark.parametrize("text", [b"", b'"', b'{"a', b'{"a\\', b"]]]}}}", b'{"a":"\\'])
def test_a_text_that_ends_early_or_closes_what_is_not_open_exceeds_nothing(text: bytes) -> None:
    assert json_excess(text, values=3, depth=1, fields=1) is None
