"""A server that runs: started, waited for, its log read line by line as it comes, stopped."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from bench.peers import HOST, Peer, Settings

READY_SECONDS = 300.0
STOP_SECONDS = 30.0


class TimedLog:
    """A process's output: every line with the monotonic time at which it came. Read by a thread of its own.

    `listener` gets each line and its time, in that thread.
    """

    def __init__(
        self, pipe: IO[bytes], copy: Path | None = None, listener: Callable[[str, float], object] | None = None
    ) -> None:
        # Written by the reading thread, read by others, under the condition.
        self._lines: list[tuple[float, str]] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(pipe, copy, listener), name="server-log", daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes], copy: Path | None, listener: Callable[[str, float], object] | None) -> None:
        with pipe, open(copy or os.devnull, "ab", buffering=0) as kept:
            for line in pipe:
                now, text = time.monotonic(), line.decode("utf-8", "replace").rstrip()
                kept.write(line)
                with self._changed:
                    self._lines.append((now, text))
                    self._changed.notify_all()
                if listener is not None:
                    listener(text, now)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def matches(self, words: re.Pattern[str], since: float = 0.0) -> list[tuple[float, re.Match[str]]]:
        """All lines since then in which `words` are found."""
        with self._changed:
            found = [(at, words.search(text)) for at, text in self._lines if at >= since]
        return [(at, match) for at, match in found if match is not None]

    def wait_for(
        self, words: re.Pattern[str], since: float, seconds: float, count: int = 1
    ) -> list[tuple[float, re.Match[str]]]:
        """The first `count` lines since then in which `words` are found; fewer when the time is over."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(found := self.matches(words, since)) < count and not self._ended:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
        return found[:count]

    def tail(self, n_lines: int = 20) -> str:
        with self._changed:
            return "\n".join(text for _, text in self._lines[-n_lines:])

    def join(self) -> None:
        """Wait until the process's last line was read; not for long, since its children may hold the pipe open."""
        self._thread.join(2.0)


@dataclass(slots=True)
class RunningPeer:
    """A server that is ready; `seconds_to_ready` are those from its start until it said that it can generate."""

    peer: Peer
    settings: Settings
    process: subprocess.Popen[bytes]
    log: TimedLog
    seconds_to_ready: float = 0.0

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def running(
    peer: Peer,
    settings: Settings,
    log: Path | None = None,
    listener: Callable[[str, float], object] | None = None,
) -> Iterator[RunningPeer]:
    """Start a server and wait until it is ready; end it with SIGTERM, or with SIGKILL if that takes too long."""
    process = subprocess.Popen(peer.command(settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    found = RunningPeer(peer, settings, process, TimedLog(process.stdout, log, listener))
    try:
        try:
            found.seconds_to_ready = wait_until_ready(process, settings.url + peer.ready_path)
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(f"{peer.name}: {error}\n{found.log.tail()}") from error
        yield found
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        found.log.join()


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> float:
    """Seconds until `url` is answered with 200."""
    began = time.monotonic()
    # One client: making one costs more than the request, on cores that the server wants for loading.
    with httpx.Client(timeout=1.0) as client:
        while time.monotonic() - began < READY_SECONDS:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            try:
                if client.get(url).status_code == httpx.codes.OK:
                    return time.monotonic() - began
            except httpx.TransportError:
                pass
            time.sleep(0.02)
    raise TimeoutError(f"{url} was not answered with 200 in {READY_SECONDS} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
