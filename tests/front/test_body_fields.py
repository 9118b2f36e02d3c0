"""The fields that choose a request's way, found without parsing the rest."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.front.preferences import WANTED, fields_in
from pyllmcancel.server.errors.responses import ApiError

SCALARS = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3))


@given(
    body=st.dictionaries(st.sampled_from(["model", "keep_alive", "session_id", "x"]) | st.text(max_size=4), VALUES),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_the_same_is_found_as_by_a_parser(body: dict[str, Any], *, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    expected = {name: value for name, value in body.items() if name in WANTED and not isinstance(value, list | dict)}
    assert fields_in(text) == expected


@given(st.binary(max_size=64) | st.text(alphabet='{}[]",:\\ model1', max_size=64).map(str.encode))
def test_what_is_not_json_raises_nothing(text: bytes) -> None:
    assert fields_in(b'{"messages": ' + text).keys() <= WANTED.keys()
    fields_in(text)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (rb'{"mod\u0065l": "a"}', {"model": "a"}),  # as the parser reads it
        (b'{"model": "a", "model": "b"}', {"model": "b"}),
        (b'{"messages": [{"model": "in"}], "model": "out"}', {"model": "out"}),
        (b'{"model": {"model": "in"}}', {}),
        (b'{"keep_alive": 0, "stream": 1, "timeout": "1"}', {"keep_alive": 0, "stream": 1, "timeout": "1"}),
        (b'{"text": "\\"model\\": \\"in\\"", "model": "out"}', {"model": "out"}),
        (b'["model", "a"]', {}),
        (b" " * 100 + b"\r\n\t" * 50 + b'{"model": "b"}', {"model": "b"}),
        (b"", {}),
        (b'{"model"', {}),
    ],
)
def test_cases(body: bytes, expected: dict[str, Any]) -> None:
    assert repr(fields_in(body)) == repr(expected)


def test_a_body_that_would_hold_up_others_is_refused() -> None:
    for text in (b'{"a": [' + b"[]," * 1_000_000, b"[" * 1_000_001):
        with pytest.raises(ApiError, match="more than 1,000,000 values"):
            fields_in(text)


def test_the_fields_of_a_form_are_found() -> None:
    data = {"model": "b", "keep_alive": "5m", "stream": "true"}
    whole = httpx.Request("POST", "http://x", data=data, files={"file": ("a.wav", b"\0" * 50)}).read()
    assert fields_in(whole) == {"model": "b", "keep_alive": "5m", "stream": True}
    assert fields_in(whole[:-9]) == {}
    assert fields_in(b"--") == {}
