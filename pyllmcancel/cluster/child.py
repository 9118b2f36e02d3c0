"""A process that is started again when it ends, and that ends with this one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyllmcancel.cluster.output import Output

logger = logging.getLogger("pyllmcancel.cluster")

BOUND = Path(__file__).with_name("bound.py")
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before it is started again
LONG_LIFE = 60.0  # seconds of life after which the pauses start from the shortest again


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
        self.n_starts = 0
        self._command = command
        self._write = write
        self._environment = os.environ | (environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._closing = asyncio.Event()
        self.ended = asyncio.Event()  # set when the process has ended for the first time

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Start the process again and again, until `close`."""
        pause = FIRST_PAUSE
        while not self._closing.is_set():
            began = time.monotonic()
            status = await self.live()
            self.ended.set()
            if self._closing.is_set():
                return
            if time.monotonic() - began > LONG_LIFE:
                pause = FIRST_PAUSE
            logger.warning("%s ended with status %s; it is started again in %.1f s", self.name, status, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def live(self) -> int:
        """Start the process once; return its status."""
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
        self.n_starts += 1
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

    def close(self) -> None:
        """Do not start the process again from now on."""
        self._closing.set()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def bound(command: Sequence[str]) -> list[str]:
    """Return the command of a process that runs `command`, and ends with this one."""
    return [sys.executable, "-I", "-S", str(BOUND), str(os.getpid()), *command]


async def first(*waits: Awaitable[object]) -> int:
    """Return the task that is done first; the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(i for i, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
