"""A server under test: started, waited for, watched from outside, stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


def start_pyllmcancel(
    model: Path, port: int, *options: str, log: Path | None = None, pipe: bool = False
) -> subprocess.Popen[bytes]:
    """Start a server; its log goes to a file, to the process's `stdout` with `pipe`, or nowhere."""
    command = [sys.executable, "-P", "-m", "pyllmcancel", "serve", "--model", str(model), "--port", str(port), *options]
    if pipe:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with (log or Path("/dev/null")).open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def wait_until_healthy(process: subprocess.Popen[bytes], url: str, seconds: float = 120.0) -> float:
    """Seconds until ``/health`` says 200."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=1.0).status_code == httpx.codes.OK:
                return time.monotonic() - began
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    raise TimeoutError(f"{url} did not become healthy in {seconds} s")


@contextmanager
def serving(model: Path, port: int, *options: str, log: Path | None = None) -> Iterator[tuple[str, int]]:
    """A running server's URL and process id."""
    process = start_pyllmcancel(model, port, *options, log=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(process, url)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(30)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, from the scheduler's own accounting."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended meanwhile
    return total / 1e9


def seconds_until_quiet(pid: int, since: float, *, window: float = 0.05, at_most: float = 0.001) -> float:
    """Time from `since` (monotonic) until the process's threads stop using CPU.

    Quiet means: in the `window` seconds that follow, at most `at_most` CPU seconds are used by all threads together.
    The answer is that window's beginning, with the accounting's own granularity of a scheduler tick.
    """
    samples: list[tuple[float, float]] = []
    while True:
        now = time.monotonic()
        samples.append((now, cpu_seconds(pid)))
        for when, used in samples:
            if now - when < window:
                break
            if samples[-1][1] - used <= at_most:
                return max(0.0, when - since)
            samples = samples[1:]
        time.sleep(0.001)
