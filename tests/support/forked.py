"""Servers that are forked from a process that has imported everything; see `zygote`."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

ZYGOTE = Path(__file__).with_name("zygote.py")


class ForkedServer:
    """``pyllmcancel serve``, as `subprocess.Popen` has a process, forked by the `zygote` of this socket.

    Its environment must have what its imports read as the zygote has it. Its standard output is this process's.
    """

    def __init__(self, zygote: Path, options: Sequence[str], environment: Mapping[str, str]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(zygote))
        reading, writing = os.pipe()
        message = json.dumps({"options": options, "environment": dict(environment), "folder": os.getcwd()})
        socket.send_fds(self._connection, [message.encode()], [1, writing])
        os.close(writing)
        self.stderr: IO[str] = os.fdopen(reading)
        self.pid = int(self._line())
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit status, if there is one yet."""
        return self._status(0.0)

    def wait(self, timeout: float) -> int:
        """Wait for the end; return the exit status, or raise subprocess.TimeoutExpired."""
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("pyllmcancel serve", timeout)
        return status

    def _status(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            self.returncode = int(self._line())
            self._connection.close()
        return self.returncode

    def _line(self) -> bytes:
        # Byte by byte: what a buffer has read `select` does not see.
        line = b""
        while not line.endswith(b"\n"):
            byte = self._connection.recv(1)
            if not byte:
                raise ConnectionError("the zygote has ended")
            line += byte
        return line


@cache
def zygote() -> Path:
    """Start a zygote, once; returns its socket."""
    folder = tempfile.TemporaryDirectory(prefix="zygote-")
    path = Path(folder.name) / "socket"
    command = [sys.executable, "-P", ZYGOTE, path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return path
