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


def wait_until_healthy(
    process: subprocess.Popen[bytes], url: str, seconds: float = 120.0, *, path: str = "/health"
) -> float:
    """Seconds until ``/health``, or another `path`, says 200."""
    began = time.monotonic()
    # One client: making one costs more than the request, on cores that the server wants for loading.
    with httpx.Client(timeout=1.0) as client:
        while time.monotonic() - began < seconds:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            try:
                if client.get(f"{url}{path}").status_code == httpx.codes.OK:
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
