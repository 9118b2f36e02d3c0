"""A custom tool's input, read while its function's arguments come."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.server.responses.output_items import CustomInput


def told(arguments: str, cuts: list[int]) -> tuple[list[str], str]:
    """Return the text that is sent while the input comes, and at the end."""
    custom = CustomInput()
    places = [0, *sorted(cuts), len(arguments)]
    deltas = [custom.feed(arguments[first:last]) for first, last in pairwise(places)]
    rest = custom.finish()
    assert "".join([*deltas, rest]) == custom.text
    return deltas, rest


@pytest.mark.long
@given(st.text(), st.booleans(), st.data())
def test_it_is_told_however_it_is_cut(text: str, ascii_only: bool, data: st.DataObject) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    cuts = data.draw(st.lists(st.integers(0, len(arguments))))
    deltas, rest = told(arguments, cuts)
    assert ("".join(deltas), rest) == (text, "")


def test_it_is_told_as_soon_as_it_can_be_read() -> None:
    fragments = ['{"inp', 'ut": "a', "b\\", "nc", "\\ud83d", "\\ude00d", '"', "}"]
    custom = CustomInput()
    assert [custom.feed(fragment) for fragment in fragments] == ["", "a", "b", "\nc", "", "\U0001f600d", "", ""]
    assert custom.finish() == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", ""),
        ("no JSON", "no JSON"),
        ('{"other": "x"}', '{"other": "x"}'),
        ('{"other": 1, "input": "x"}', "x"),
        ('{"input": 3}', '{"input": 3}'),
        ("[1]", "[1]"),
        ('{"input": "cut off', "cut off"),
        ('{"input": "a \\q b"}', "a \\q b"),
    ],
)
def test_what_a_model_has_written_otherwise_is_told_as_it_is(arguments: str, expected: str) -> None:
    deltas, rest = told(arguments, [len(arguments) // 2])
    assert "".join(deltas) + rest == expected
