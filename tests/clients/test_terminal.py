"""A terminal answers what programs ask of it, and its screen is a page with colours."""

import os
import sys
from pathlib import Path

from tests.clients.terminal import Terminal

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
