"""The input of a call is JSON of an object whatever the model writes, and has no member that was cut off."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.server.anthropic.message_blocks import INVALID, CallInput

TRICKY = {"text": 'a "}, {" and a \\ and \u00e9', "list": [{"x": [1, "]"]}, {}], "": None, "n": -1.5e3}


def told(*fragments: str, eager: bool = False) -> str:
    found = CallInput(eager=eager)
    return "".join([*map(found.feed, fragments), found.finish()])


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {}, "b": []}, TRICKY], ids=str)
@pytest.mark.parametrize("indent", [None, 2])
def test_an_object_is_told_whole_wherever_it_is_cut(value: dict[str, Any], indent: int | None) -> None:
    text = f" {json.dumps(value, indent=indent)}\n"
    assert json.loads(told(text)) == value
    assert json.loads(told(*text)) == value
    for cut in range(len(text)):
        assert json.loads(told(text[:cut], text[cut:])) == value


def test_members_are_told_when_they_are_whole() -> None:
    found = CallInput()
    pieces = [found.feed(piece) for piece in ('{"a"', ': 1, "b": "x', ", y", '", "c": 2', "}")]
    assert pieces == ["", '{"a": 1', "", ', "b": "x, y"', ', "c": 2']
    assert found.finish() == "}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{", {}),
        ('{"a": 1, "b": "cut o', {"a": 1}),
        ('{"a": 1, "b": [1, 2', {"a": 1}),
        ('{"a": 12', {}),
    ],
)
def test_an_input_that_breaks_off_has_only_members_that_are_whole(text: str, expected: dict[str, Any]) -> None:
    assert json.loads(told(text)) == expected


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("ls -l", {}),
        ('"text"', {}),
        ("{a: 1}", {}),
        ('{"a": 1, b}', {"a": 1}),
        ('{"a": 1, "b": nul, "c": 2}', {"a": 1}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": 1} and more', {"a": 1}),
        ('{"a": 1]', {"a": 1}),
        ("{,}", {}),
        ('{"a": "\\x"}', {}),
    ],
)
def test_what_is_no_json_is_told_as_text_in_a_member_of_its_own(text: str, whole: dict[str, Any]) -> None:
    assert json.loads(told(text)) == whole | {INVALID: text}
    assert json.loads(told(*text)) == whole | {INVALID: text}


def test_an_eager_input_is_told_as_it_is_written() -> None:
    found = CallInput(eager=True)
    assert [found.feed('{"a": tr'), found.feed("ou"), found.finish()] == ['{"a": tr', "ou", ""]


@given(st.lists(st.sampled_from([*'{}[],:" \\', "a", '"a"', '"b": 1', "1", "true", "é"]), max_size=12))
def test_whatever_is_written_is_told_as_an_object(fragments: list[str]) -> None:
    found = json.loads(told(*fragments))
    assert isinstance(found, dict)
    assert found == json.loads(told("".join(fragments)))
    if INVALID in found:
        assert found[INVALID] == "".join(fragments)
