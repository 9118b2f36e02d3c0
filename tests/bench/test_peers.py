"""How the servers of the side-by-side runs are found, started and read."""

import os
import re
from pathlib import Path

import pytest

from bench.peers import PEERS, NotAvailableError, Settings
from bench.peers.running import TimedLog

SETTINGS = Settings(model=Path("/models/m.gguf"), port=8123, threads=2, parallel=4, ctx_size=8192)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that passes for every peer: it says yes to what is asked of a Python."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho True\n")
    program.chmod(0o755)
    for variable in ("LLAMA_SERVER", "PEERS_PYTHON"):
        monkeypatch.setenv(variable, str(program))
    return program


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_is_told_the_model_the_port_and_the_threads(name: str) -> None:
    command = " ".join(PEERS[name].command(SETTINGS))
    assert "/models/m.gguf" in command
    assert "8123" in command
    assert "127.0.0.1" in command
    assert "threads 2" in command


def test_a_missing_program_is_reported_with_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_SERVER", str(tmp_path / "nowhere"))
    with pytest.raises(NotAvailableError, match=r"nowhere; LLAMA_SERVER names another place"):
        PEERS["llama-server"].command(SETTINGS)


def test_our_log_tells_when_a_client_has_left() -> None:
    words = PEERS["pyllmcancel"].left
    assert words is not None
    assert words.search("pyllmcancel.engine: request r-1 cancelled (disconnect) in waiting: 5 prompt tokens")
    assert not words.search("pyllmcancel.engine: request r-1 cancelled (explicit) in prefill: 5 prompt tokens")


def test_the_log_of_llama_server_tells_what_was_computed() -> None:
    words = PEERS["llama-server"].released
    assert words is not None
    found = words.search("I slot      release: id  1 | task 0 | stop processing: n_tokens = 12, truncated = 0")
    assert found is not None
    assert found["n_tokens"] == "12"


def test_a_log_is_read_as_it_comes(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as server:
        heard: list[str] = []
        log = TimedLog(pipe, tmp_path / "copy.log", lambda line, _: heard.append(line))
        server.write(b"first\nnumber 1\nnumber 2\n")
        found = log.wait_for(re.compile(r"number (\d)"), since=0.0, seconds=30.0, count=2)
        server.close()
        assert [match[1] for _, match in found] == ["1", "2"]
        assert log.wait_for(re.compile("number 3"), since=0.0, seconds=30.0) == []
        log.join()
    assert heard == ["first", "number 1", "number 2"]
    assert (tmp_path / "copy.log").read_text() == "first\nnumber 1\nnumber 2\n"
