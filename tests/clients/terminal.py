"""A program on a terminal of its own: what it draws, and a user at its keys."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyte

from tests.support.http_process import until

COLUMNS, LINES = 120, 40
SECONDS_PER_KEY = 0.02  # a person's, not a paste's: programs tell them apart
PATIENCE = 60.0
# What a program may ask its terminal: where the cursor is, what kind of terminal it is; and the answers.
QUESTIONS = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?62;c"}


class Terminal(AbstractContextManager["Terminal"]):
    """Ends its program at the end of the block."""

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        folder: Path,
        size: tuple[int, int] = (COLUMNS, LINES),
    ) -> None:
        columns, lines = size
        self._keys, screen = pty.openpty()
        self._mode = termios.tcgetattr(screen)
        fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            cwd=folder,
            env=dict(environment) | {"TERM": "xterm-256color", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        os.close(screen)
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()  # of the screen
        self._reader = threading.Thread(target=self._read, name="terminal")
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._keys, 65_536)
            except OSError:
                return  # the program is gone
            with self._lock:
                self._stream.feed(data)
            for question, answer in QUESTIONS.items():
                os.write(self._keys, answer * data.count(question))

    @property
    def drawn(self) -> str:
        with self._lock:
            return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def is_as_found(self) -> bool:
        """Return whether the program has left the terminal in the mode in which it was started."""
        return termios.tcgetattr(self._keys) == self._mode

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def children(self) -> list[int]:
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def until_drawn(self, text: str, seconds: float = PATIENCE) -> None:
        until(lambda: self.drawn, lambda drawn: text in drawn, seconds)

    def press(self, keys: str) -> float:
        """Press them at once; when that was."""
        pressed = time.time()
        os.write(self._keys, keys.encode())
        return pressed

    def type(self, text: str) -> None:
        for key in text:
            self.press(key)
            time.sleep(SECONDS_PER_KEY)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        os.close(self._keys)
