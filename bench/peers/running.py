"""A peer that runs: started, waited for, its log read line by line as it comes, stopped."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bench.peers.protocol import HOST, Peer, Settings
from bench.server_process import wait_until_healthy

STOP_SECONDS = 10.0


class TimedLog:
    """A process's output: every line with the monotonic time at which it came. Read by a thread of its own."""

    def __init__(self, pipe: IO[bytes], copy: Path | None = None) -> None:
        # Written by the reading thread, read by others, under the condition.
        self._lines: list[tuple[float, str]] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(pipe, copy), name="peer-log", daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes], copy: Path | None) -> None:
        with open(copy or os.devnull, "ab") as kept:
            for line in pipe:
                now = time.monotonic()
                kept.write(line)
                with self._changed:
                    self._lines.append((now, line.decode("utf-8", "replace").rstrip()))
                    self._changed.notify_all()
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


@dataclass(slots=True)
class RunningPeer:
    """A server that is ready.

    Attributes
    ----------
    seconds_to_ready
        From the start of the process until it said that it can generate.
    """

    peer: Peer
    settings: Settings
    command: list[str]
    process: subprocess.Popen[bytes]
    log: TimedLog
    seconds_to_ready: float = field(default=0.0)

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def running(peer: Peer, settings: Settings, log: Path | None = None) -> Iterator[RunningPeer]:
    """Start a peer and wait until it is ready; stop it at the end, the hard way if it does not obey."""
    command = peer.command(settings)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | dict(peer.environment())
    )
    assert process.stdout is not None
    timed_log = TimedLog(process.stdout, log)
    running_peer = RunningPeer(peer, settings, command, process, timed_log)
    try:
        try:
            running_peer.seconds_to_ready = wait_until_healthy(process, settings.url, path=peer.ready_path)
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(f"{peer.name}: {error}\n{timed_log.tail()}") from error
        yield running_peer
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
