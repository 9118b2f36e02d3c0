"""A terminal's whole screen. Only changed lines are written, because the connection may be slow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from rich.console import Console
from rich.text import Text

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"


class Screen(AbstractContextManager["Screen"]):
    """The alternate screen, without a cursor; `leave` restores the former screen.

    Every method that writes raises OSError when the terminal is gone, except `leave`.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._shown: list[str] = []
        self._entered = False

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self.console.size.width, self.console.size.height

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            with suppress(OSError):
                self._write(LEAVE)

    def forget(self) -> None:
        """Write everything the next time: the terminal's size has changed, or others have written on it."""
        self._entered = False

    def show(self, lines: Sequence[Text]) -> None:
        if not self._entered:
            self._write(ENTER)
            self._entered, self._shown = True, []
        drawn = [rendered(line, self.console) for line in lines]
        before = self._shown + [""] * (len(drawn) - len(self._shown))
        # The line is cleared first: after a line as wide as the screen some terminals would clear its last character.
        changed = [
            f"\x1b[{row};1H\x1b[0m\x1b[2K{line}"
            for row, (line, old) in enumerate(zip(drawn, before, strict=False), 1)
            if line != old
        ]
        if changed:
            self._write("".join(changed))
        self._shown = drawn

    def _write(self, text: str) -> None:
        self.console.file.write(text)
        self.console.file.flush()


def rendered(line: Text, console: Console) -> str:
    """Return the text with the escapes of this console's colours, if it has any."""
    with console.capture() as captured:
        console.print(line, end="", soft_wrap=True, highlight=False)
    return captured.get()
