"""Logs that cannot be written, as on a full disk, cost no client its answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.http_process import LIMIT, START_LIMIT, until
from tests.support.marks import mostly_long
from tests.support.proxies import free_port

ASKED = {"prompt": "hello", "temperature": 0, "max_tokens": 8}


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def reader_gone() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


@contextmanager
def serving(model: Path, *options: str, output: int | None) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """A server whose standard output and error are `output`, or closed."""
    port = free_port()
    fixed = f"-m pyllmcancel serve --port {port} --threads 1 --model".split()
    command = [sys.executable, *fixed, str(model)]
    shell = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh"] if output is None else []
    process = subprocess.Popen([*shell, *command, *options], stdout=output, stderr=output)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client:
            until(lambda: health(client, process), lambda status: status == 200, START_LIMIT)
            yield client, process
    finally:
        process.kill()
        process.wait(LIMIT)
        if output is not None:
            os.close(output)


def health(client: httpx.Client, process: subprocess.Popen[bytes]) -> int:
    assert process.poll() is None, f"the server ended with {process.returncode}"
    try:
        return client.get("/health").status_code
    except httpx.TransportError:
        return 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize(
    "output", mostly_long([full_disk, reader_gone, None], None), ids=["full disk", "reader gone", "closed"]
)
def test_the_server_serves_though_it_cannot_log(model_files: dict[str, Path], output: Callable[[], int] | None) -> None:
    with serving(model_files["attention"], output=output() if output else None) as (client, process):
        first = client.post("/v1/completions", json=ASKED)
        refused = client.post("/v1/completions", json={"prompt": 5, "nonsense": True})
        again = client.post("/v1/completions", json=ASKED)
        assert (first.status_code, refused.status_code, again.status_code) == (200, 400, 200)
        assert again.json()["choices"] == first.json()["choices"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == -signal.SIGTERM
