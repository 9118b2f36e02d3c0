"""A terminal answers what programs ask of it."""

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


def test_a_program_is_told_where_the_cursor_is(tmp_path: Path) -> None:
    with Terminal([sys.executable, "-c", ASKS], os.environ, tmp_path) as terminal:
        terminal.until_drawn("it is at 1;1R")
