"""A full disk costs no client its answer: neither logs that cannot be written, nor a store that has no room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.http_process import LIMIT, until
from tests.support.marks import mostly_long
from tests.support.proxies import free_port
from tests.support.stores import Disk

pytest_plugins = ("tests.support.store_fixtures",)

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
    closes = 'exec "$@" >&- 2>&-'
    shell = ["sh", "-c", closes, "sh"] if output is None else []
    process = subprocess.Popen([*shell, *command, *options], stdout=output, stderr=output)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LIMIT) as client:
            until(lambda: health(client, process), lambda status: status == 200)
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
def test_the_server_answers_and_ends_though_nothing_can_be_logged(
    model_files: dict[str, Path], output: Callable[[], int] | None
) -> None:
    with serving(model_files["attention"], output=output() if output else None) as (client, process):
        first = client.post("/v1/completions", json=ASKED)
        refused = client.post("/v1/completions", json={"prompt": 5, "nonsense": True})
        again = client.post("/v1/completions", json=ASKED)
        assert (first.status_code, refused.status_code, again.status_code) == (200, 400, 200)
        assert again.json()["choices"] == first.json()["choices"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == -signal.SIGTERM


RESPONSES = "/v1/responses"


def create(client: httpx.Client, status: int = 200, **fields: object) -> str:
    answer = client.post(RESPONSES, json={"input": "hello", "max_output_tokens": 16} | fields)
    assert answer.status_code == status, answer.text
    return str(answer.json()["id" if status == 200 else "error"])


@pytest.mark.long
def test_a_server_starts_on_a_full_disk_says_that_it_stores_nothing_and_stores_when_there_is_room(
    model_files: dict[str, Path], disk: Disk, tmp_path: Path
) -> None:
    disk.fill()
    log = tmp_path / "log"
    with serving(
        model_files["attention"],
        *("--store", str(disk.store)),
        output=os.open(log, os.O_WRONLY | os.O_CREAT),
    ) as (client, _):
        assert client.get("/health").json()["stores"] is False
        assert "no room" in log.read_text("utf-8")
        assert "storage_full" in create(client, 507)
        create(client, store=False)
        disk.empty()
        assert client.get(f"{RESPONSES}/{create(client)}").status_code == 200
        assert "stores" not in client.get("/health").json()


@pytest.mark.long
def test_on_a_full_disk_responses_can_be_deleted_and_make_room(model_files: dict[str, Path], disk: Disk) -> None:
    options = "--store", str(disk.store)
    with serving(model_files["attention"], *options, output=os.open(os.devnull, os.O_WRONLY)) as (client, _):
        ids = [create(client) for _ in range(10)]
        disk.fill()
        create(client, 507, tools=[{"type": "web_search", "note": "x" * 200_000}])  # no word of it is for the model
        deleted = [client.delete(f"{RESPONSES}/{one}").status_code for one in ids[:9]]
        assert deleted == [200] * 9
        create(client)
    with serving(model_files["attention"], *options, output=os.open(os.devnull, os.O_WRONLY)) as (client, _):
        assert client.get(f"{RESPONSES}/{ids[9]}").status_code == 200
        assert client.delete(f"{RESPONSES}/{ids[9]}").status_code == 200
