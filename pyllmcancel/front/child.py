"""A process that ends with this one, and its output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

BOUND = Path(__file__).with_name("bound.py")
PAUSE = 0.05  # seconds between two looks at the output; what comes meanwhile waits in the pipe
LINE = 1 << 16  # bytes of a line that are kept together

Write = Callable[[list[str]], None]
"""Takes lines, without their line feeds."""


class Child:
    """A process that runs a command, and has its output taken by `write`. Used in the event loop only.

    Secrets, which must not be in a list of processes, are in its environment.
    """

    def __init__(self, command: Sequence[str], write: Write, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._write = write
        self._environment = os.environ | (environment or {})
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def live(self) -> int:
        """Run the command once; return its status. The process ends if this is cancelled."""
        reading, writing = os.pipe()
        ended = asyncio.Event()
        output = asyncio.create_task(pass_on(os.fdopen(reading, "rb", 0), self._write, ended))
        try:
            # A session of its own: Ctrl-C reaches this process only, which then ends all others in the right order.
            self._process = await asyncio.create_subprocess_exec(
                *bound(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=self._environment,
            )
        finally:
            os.close(writing)
        try:
            return await self._process.wait()
        finally:
            # Its own children end, too; only then is its output complete.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            ended.set()
            await output
            await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def bound(command: Sequence[str]) -> list[str]:
    """Return the command of a process that runs `command`, and ends with this one."""
    return [sys.executable, "-I", "-S", str(BOUND), str(os.getpid()), *command]


async def pass_on(pipe: BinaryIO, write: Write, ended: asyncio.Event) -> None:
    """Pass on the lines of a pipe until it is closed, with pauses until its process has `ended`.

    A process that woke up for each line of another one's log would spend more on it than on its own work.
    """
    reader = asyncio.StreamReader(limit=1)  # what has come is taken before more is read
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    rest = b""
    while data := await reader.read(LINE):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE:
            lines, rest = [*lines, rest], b""
        if lines:
            write([line.decode(errors="replace") for line in lines])
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), PAUSE)
    if rest:
        write([rest.decode(errors="replace")])


def to_stderr(lines: list[str]) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
