"""Keys from bytes, however they are cut; and the terminal as it was found."""

import os
import pty
import termios

import pytest

from pyllmcancel.top.keys import Keyboard

TYPED = b"j\x1b[A\x1bOBk\x1b[1;5A\x1b[200~c\x1b[3~?\xc3\xa9q\t"
KEYS = ["j", "up", "down", "k", "c", "?", "q"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_keys_are_the_same_however_they_are_cut(size: int) -> None:
    ours, theirs = pty.openpty()
    keys = []
    with Keyboard(theirs) as keyboard:
        for i in range(0, len(TYPED), size):
            os.write(ours, TYPED[i : i + size])
            keys += keyboard.pressed(10.0)
    assert [key for key in keys if not key.startswith("\x1b")] == KEYS
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("begun", [b"\x1b", b"\x1b[" + b"1" * 100])
def test_a_sequence_that_never_ends_swallows_nothing_that_follows(begun: bytes) -> None:
    ours, theirs = pty.openpty()
    with Keyboard(theirs) as keyboard:
        os.write(ours, begun)
        keyboard.pressed(10.0)
        os.write(ours, b"q")
        assert keyboard.pressed(10.0)[-1] == "q"
    os.close(ours)
    os.close(theirs)


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
    with pytest.raises(OSError, match=r"Input/output error|gone"):
        keyboard.pressed(10.0)
    keyboard.leave()  # it is gone: nothing to do
    os.close(theirs)
