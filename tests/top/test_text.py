"""Texts that others chose cannot move the terminal's cursor; numbers read well."""

import pytest

from pyllmcancel.top.client import LONGEST, duration, milliseconds, plain

HOSTILE = {
    "escape": "a\x1b[2Jb",
    "line feed": "a\nb",
    "C1 control": "a\x9b2Jb",
    "right to left": "a\u202eb",
    "no width": "a\u200bb",
    "line separator": "a\u2028b",
    "half a pair": "a\ud800b",
    "tag": "a\U000e0041b",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_that_a_terminal_obeys_is_left(kind: str) -> None:
    text = plain(HOSTILE[kind])
    assert text[:2] == "a\N{REPLACEMENT CHARACTER}"
    assert text[-1] == "b"
    assert text.isprintable()


def test_markup_stays_what_was_written_and_letters_stay_letters() -> None:
    assert plain("[bold red]x[/]") == "[bold red]x[/]"
    assert plain("Zu\u0308rich \u6771\u4eac") == "Z\u00fcrich \u6771\u4eac"


def test_marks_cannot_be_piled_up_and_texts_have_an_end() -> None:
    assert "\u0301" not in plain("x" + "\u0301" * 50)
    assert len(plain("x" * 10_000_000)) == LONGEST


def test_numbers() -> None:
    durations = [duration(seconds) for seconds in (-1.0, 0.44, 42.0, 185.0, 7_800.0)]
    assert durations == ["0.0 s", "0.4 s", "42 s", "3:05", "2 h 10"]
    assert [milliseconds(value) for value in (1.94, 2345.0)] == ["1.9 ms", "2,345 ms"]
