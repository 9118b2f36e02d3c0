"""A process that ends with this one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyllmcancel.front.output import Output

BOUND = Path(__file__).with_name("bound.py")


class Child:
    """A process that runs a command. Used in the event loop only.

    Parameters
    ----------
    write
        Called with lines of its output, as they are taken.
    environment
        Variables to add to those of this process, for secrets that must not be in a list of processes.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        write: Callable[[list[str]], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = command
        self._write = write
        self._environment = os.environ | (environment or {})
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def live(self) -> int:
        """Run the command once; return its status."""
        if sys.platform == "win32":
            raise NotImplementedError("child processes that end with this one need Linux")
        output, writing = await Output.of_a_pipe(self._prefixed)
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
            output.hurry()
            await output.closed

    def _prefixed(self, lines: list[str]) -> None:
        self._write([f"[{self.name}] {line}" for line in lines])

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def bound(command: Sequence[str]) -> list[str]:
    """Return the command of a process that runs `command`, and ends with this one."""
    return [sys.executable, "-I", "-S", str(BOUND), str(os.getpid()), *command]
