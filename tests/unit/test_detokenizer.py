"""From tokens to text: characters are never cut, stop strings never leak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.requests.detokenizer import Detokenizer


def feed(text: bytes, *stop: str) -> tuple[list[str], Detokenizer]:
    """Feed byte by byte; returns the pieces of text as they come."""
    detokenizer = Detokenizer(lambda token: bytes([token]), stop)
    return [detokenizer.feed(byte) for byte in text], detokenizer


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    pieces, detokenizer = feed("é".encode()[:1])
    assert pieces == [""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


@pytest.mark.parametrize(
    ("text", "stop", "expected", "held_back", "stopped_by"),
    [
        ("one STOP two", ["STOP"], "one ", "", "STOP"),
        ("a<en", ["<end>"], "a", "<en", None),
        ("aaab", ["aab"], "a", "", "aab"),
        ("a then b", ["b", "a"], "", "", "a"),
        ("fin。après", ["。a"], "fin", "", "。a"),
    ],
    ids=["amid", "half of it", "overlapping its own beginning", "the earlier of two", "multi-byte characters"],
)
def test_a_stop_string_ends_the_text_and_is_not_in_it(
    text: str, stop: list[str], expected: str, held_back: str, stopped_by: str | None
) -> None:
    pieces, in_bytes = feed(text.encode(), *stop)
    in_one = Detokenizer(lambda _: text.encode(), stop)
    for text_out, detokenizer in (("".join(pieces), in_bytes), (in_one.feed(0), in_one)):
        assert (text_out, detokenizer.stopped_by, detokenizer.flush()) == (expected, stopped_by, held_back)


@given(st.text(max_size=30), st.integers(1, 5))
def test_however_the_bytes_are_cut_the_text_is_the_same(text: str, size: int) -> None:
    raw = text.encode("utf-8", "replace")
    chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
    detokenizer = Detokenizer(lambda token: chunks[token])
    out = "".join(detokenizer.feed(token) for token in range(len(chunks))) + detokenizer.flush()
    assert out == raw.decode()


@given(st.text("ab<", max_size=20), st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_text_ends_where_the_first_stop_string_to_be_complete_begins(text: str, stop: list[str]) -> None:
    pieces, detokenizer = feed(text.encode(), *stop)
    out = "".join(pieces) + detokenizer.flush()
    ends = [text.find(word) + len(word) for word in stop if word in text]
    if not ends:
        assert out == text
        assert detokenizer.stopped_by is None
    else:
        first = min(ends)
        begin = min(first - len(word) for word in stop if text[:first].endswith(word))
        assert out == text[:begin]
        assert detokenizer.stopped_by is not None


@pytest.mark.parametrize(
    ("text", "min_indent", "expected", "outdented"),
    [
        (b"x\n    y\n    z", 4, "x\n    y\n    z", False),
        (b"x\n\t\t\t\ty", 4, "x\n\t\t\t\ty", False),
        (b"x\n        y", 4, "x\n        y", False),
        (b"x\n    y\n  z\n    u", 4, "x\n    y\n  ", True),
        (b"x\ny", 4, "x\n", True),
        (b"x\n\n    y", 4, "x\n", True),
        (b"  x", 4, "  x", False),
        (b"x\n   ", 4, "x\n   ", False),
        (b"    x\ny", 0, "    x\ny", False),
    ],
)
def test_a_line_indented_too_little_ends_the_text(text: bytes, min_indent: int, expected: str, outdented: bool) -> None:
    detokenizer = Detokenizer(lambda token: bytes([token]), (), min_indent)
    assert "".join(detokenizer.feed(byte) for byte in text) + detokenizer.flush() == expected
    assert detokenizer.outdented is outdented


def test_an_outdented_line_does_not_come_back_at_the_end() -> None:
    detokenizer = Detokenizer(lambda token: [b"a\nb", b"c ST"][token], ["STOP"], 4)
    assert detokenizer.feed(0) + detokenizer.feed(1) + detokenizer.flush() == "a\n"
    assert detokenizer.outdented
