"""The keyboard: keys from bytes, and a terminal that gives them one by one while they are wanted."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager

from pyllmcancel.system import give_keys_at_once, restore_terminal, terminal_mode

# Arrows are three bytes, of which the second depends on the terminal's mode; all other sequences are ignored.
SEQUENCE = re.compile(rb"\x1b(?:O.|\[[0-?]*[ -/]*[@-~])", re.DOTALL)
ARROWS = {b"A": "up", b"B": "down"}
UNFINISHED = re.compile(rb"\x1b(?:O|\[[0-?]*[ -/]*)?\Z")
LONGEST = 64  # bytes of a sequence


class KeyDecoder:
    """Turns bytes, cut anywhere, into the names of keys. A single escape counts when another byte follows it."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        data, keys = self._rest + data, []
        self._rest = b""
        while data:
            sequence = SEQUENCE.match(data)
            if sequence is not None:
                name = ARROWS.get(sequence[0][-1:]) if len(sequence[0]) == 3 else None
                keys += [name] if name is not None else []
                data = data[sequence.end() :]
            elif UNFINISHED.match(data) and len(data) < LONGEST:
                self._rest, data = data, b""
            else:
                keys += [chr(data[0])] if 0x20 <= data[0] < 0x7F else []
                data = data[1:]
        return keys


class Keyboard(AbstractContextManager["Keyboard"]):
    """A terminal in cbreak mode: no echo, no waiting for a line's end; Ctrl-C and Ctrl-Z are still signals.

    `leave` may be called at any time, and restores the terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._before = terminal_mode(descriptor)

    def __enter__(self) -> Keyboard:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        give_keys_at_once(self.descriptor)

    def leave(self) -> None:
        restore_terminal(self.descriptor, self._before)

    def read(self) -> bytes:
        """Return the bytes that were typed; nothing if the terminal is gone."""
        try:
            return os.read(self.descriptor, 4096)
        except OSError:
            return b""
