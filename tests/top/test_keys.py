"""Keys from bytes, however they are cut; and the terminal as it was found."""

from __future__ import annotations

import os
import pty
import termios

import pytest

from pyllmcancel.top.keys import Keyboard, KeyDecoder

TYPED = b"j\x1b[A\x1bOBk\x1b[1;5A\x1b[200~c\x1b[3~?\xc3\xa9q\t"
KEYS = ["j", "up", "down", "k", "c", "?", "q"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_keys_are_the_same_however_they_are_cut(size: int) -> None:
    decoder = KeyDecoder()
    assert [key for i in range(0, len(TYPED), size) for key in decoder.feed(TYPED[i : i + size])] == KEYS


def test_an_escape_alone_swallows_nothing_that_follows() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.feed(b"q") == ["q"]


def test_an_endless_sequence_is_given_up() -> None:
    decoder = KeyDecoder()
    decoder.feed(b"\x1b[" + b"1" * 100)
    assert decoder.feed(b"q")[-1] == "q"


def test_a_terminal_is_given_back_as_it_was_found() -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with Keyboard(theirs) as keyboard:
        assert not termios.tcgetattr(theirs)[3] & (termios.ECHO | termios.ICANON)
        keyboard.leave()
        assert termios.tcgetattr(theirs) == before
        keyboard.enter()
        assert termios.tcgetattr(theirs) != before
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    assert keyboard.read() == b""
    keyboard.leave()  # it is gone: nothing to do
    os.close(theirs)
