"""The output of a child process, taken from time to time: a process that woke up for each line of another one's log
would spend more on it than on its own work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import BinaryIO, cast

PAUSE = 0.05  # seconds between two looks; what comes meanwhile waits in the pipe
LINE = 1 << 16  # bytes of a line that are kept together


class Output(asyncio.Protocol):
    """Passes on the lines of a pipe until it is closed. Used in the event loop only.

    Parameters
    ----------
    write
        Called with the lines that came, without their line feeds.
    """

    def __init__(self, write: Callable[[list[str]], None]) -> None:
        self._write = write
        self._rest = b""
        self._hurries = False
        self._transport: asyncio.ReadTransport  # set when the pipe is connected
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()

    @classmethod
    async def of_a_pipe(cls, write: Callable[[list[str]], None]) -> tuple[Output, int]:
        """Make a pipe; return its output, and the descriptor to write into."""
        reading, writing = pipe()
        _, output = await asyncio.get_running_loop().connect_read_pipe(lambda: cls(write), reading)
        return output, writing

    def hurry(self) -> None:
        """Take the rest without pauses: the process has ended."""
        self._hurries = True
        self._read_on()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) > LINE:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        if lines:
            self._pass_on(lines)
        if not self._hurries:
            self._transport.pause_reading()
            self._loop.call_later(PAUSE, self._read_on)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._rest:
            self._pass_on([self._rest])
        self.closed.set_result(None)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _pass_on(self, lines: list[bytes]) -> None:
        self._write([line.decode(errors="replace") for line in lines])


def pipe() -> tuple[BinaryIO, int]:
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb", 0), writing


def to_stderr(lines: list[str]) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
