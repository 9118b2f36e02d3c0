"""A terminal: what is drawn can be read, keys arrive, and what programs ask of it is answered."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.clients.terminal import Terminal

# Moves about the screen, as full-screen programs do.
DRAWS = r"""
import sys
sys.stdout.write("\x1b[2J\x1b[5;10Hhello\x1b[5;16Hthere\x1b[2;1H")
sys.stdout.flush()
line = sys.stdin.readline()
sys.stdout.write("\x1b[8;1Hgot " + line)
sys.stdout.flush()
sys.stdin.readline()
"""
ASKS = r"""
import os, sys, termios, tty
tty.setraw(0)
os.write(1, b"\x1b[6n")
answer = os.read(0, 100)
os.write(1, b"\x1b[3;1Hit is at " + answer.lstrip(b"\x1b["))
os.read(0, 1)
"""


def run(program: str, folder: Path) -> Terminal:
    return Terminal([sys.executable, "-c", program], os.environ, folder)


def test_what_is_drawn_and_what_is_typed(tmp_path: Path) -> None:
    with run(DRAWS, tmp_path) as terminal:
        terminal.until_drawn("hello there")
        terminal.type("good day")
        terminal.press("\r")
        terminal.until_drawn("got good day")


def test_a_program_is_told_where_the_cursor_is(tmp_path: Path) -> None:
    with run(ASKS, tmp_path) as terminal:
        terminal.until_drawn("it is at 1;1R")


COLOURS = r"""
import sys
sys.stdout.write("\x1b[1;38;2;1;2;3ma < b\x1b[0m plain")
sys.stdout.flush()
sys.stdin.readline()
"""


def test_the_screen_as_a_page_has_its_colours(tmp_path: Path) -> None:
    with run(COLOURS, tmp_path) as terminal:
        terminal.until_drawn("a < b plain")
        assert '<span style="font-weight: bold;color: #010203;">a &lt; b</span> plain' in terminal.page
