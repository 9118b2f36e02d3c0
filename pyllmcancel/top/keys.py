"""A terminal that gives its keys one by one."""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from contextlib import AbstractContextManager, suppress

KEY = re.compile(rb"\x1b(?:O.|\[[0-?]*[ -/]*[@-~])|[ -~]", re.DOTALL)
ARROWS = {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down"}
UNFINISHED = re.compile(rb"\x1b(?:O|\[[0-?]{0,32}[ -/]*)?\Z")


class Keyboard(AbstractContextManager["Keyboard"]):
    """A terminal in cbreak mode: keys come at once, Ctrl-C and Ctrl-Z are signals. `leave` restores it at any time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)
        self._rest = b""  # of a sequence whose end has not come yet

    def __enter__(self) -> Keyboard:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        tty.setcbreak(self._descriptor)

    def leave(self) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def pressed(self, seconds: float) -> list[str]:
        """Wait for keys, and return them; OSError if the terminal is gone."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        typed = os.read(self._descriptor, 4096)
        if not typed:
            raise OSError("the terminal is gone")
        data = self._rest + typed
        unfinished = UNFINISHED.search(data)
        end = len(data) if unfinished is None else unfinished.start()
        self._rest = data[end:]
        return [ARROWS.get(key, key.decode("latin-1")) for key in KEY.findall(data[:end])]
