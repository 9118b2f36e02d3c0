"""`--cache-disk` of real servers: what survives a kill, and folders that cannot be used."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_process import ServerProcess, until

PROMPT = [(7 * n + 3) % 250 for n in range(300)]
Serve = Callable[..., ServerProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


@pytest.fixture
def serve(long_model: Path, folder: Path) -> Iterator[Serve]:
    """Starts servers on one folder, and waits until they know what is in it."""
    with ExitStack() as stack:

        def start(*options: str) -> ServerProcess:
            cells = ("--model", str(long_model), "--ctx-size", "2048", "--cache-disk", str(folder), *options)
            server = stack.enter_context(ServerProcess(*cells)).started()
            until(lambda: server.log, lambda log: re.search(r" of \d+ owner|no prefixes are kept on disk", log))
            return server

        yield start


def ask(server: ServerProcess, prompt: list[int], **headers: str) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 4, "temperature": 0, "return_tokens": True, "draft_max": 0}
    return server.http.post("/completion", json=body, headers=headers).raise_for_status().json()


def value_of(server: ServerProcess, name: str) -> float:
    found = re.search(rf"^pyllmcancel_{name} (\S+)$", server.http.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def kill(server: ServerProcess) -> None:
    server.signal(signal.SIGKILL)
    server.wait()


def stop(server: ServerProcess) -> None:
    server.signal()
    assert server.wait() == -signal.SIGTERM


def test_a_prompt_goes_on_where_it_was_after_a_kill(serve: Serve, folder: Path) -> None:
    server = serve()
    first = ask(server, PROMPT)
    assert first["timings"]["cache_n"] == 0
    until(lambda: value_of(server, "disk_prefixes_written_total"), lambda written: written == 1)
    kill(server)
    server = serve()
    assert re.search(rf"1 prefix of 1 owner, \d+ MiB, from {re.escape(str(folder))}", server.log)
    again = ask(server, PROMPT)
    assert again["timings"]["cache_n"] == len(PROMPT) - 1
    assert again["tokens"] == first["tokens"]
    assert value_of(server, "disk_prefixes_restored_total") == 1
    assert value_of(server, "disk_bytes") > 0


def test_a_second_server_runs_without_the_folder(serve: Serve, folder: Path) -> None:
    server, second = serve(), serve()
    assert f"no prefixes are kept on disk: another server uses {folder}" in second.log
    ask(second, PROMPT)
    stop(second)
    assert value_of(server, "disk_prefixes") == 0
    ask(server, PROMPT)
    until(lambda: value_of(server, "disk_prefixes_written_total"), lambda written: written == 1)


@pytest.mark.long
def test_a_folder_that_cannot_be_used_is_a_warning_and_of_slots_an_error(serve: Serve, tmp_path: Path) -> None:
    server = serve("--cache-disk", "/proc/self/prefixes")  # not even root can make a folder there
    assert "/proc/self/prefixes cannot be used" in server.log
    assert len(ask(server, PROMPT)["tokens"]) == 4
    with ServerProcess("--slot-save-path", str(tmp_path / "missing")) as other:
        assert other.wait() == 2
        assert "is not a folder" in other.log


@pytest.mark.long
def test_what_is_at_rest_is_written_at_the_end_and_other_cells_leave_it(serve: Serve) -> None:
    server = serve()
    ask(server, PROMPT)
    stop(server)
    server = serve("--cache-type-k", "bf16", "--cache-type-v", "bf16")
    assert "0 prefixes of 0 owners" in server.log
    assert "1 of other models, builds or cells are not used" in server.log
    assert ask(server, PROMPT)["timings"]["cache_n"] == 0
    kill(server)
    assert ask(serve(), PROMPT)["timings"]["cache_n"] == len(PROMPT) - 1
