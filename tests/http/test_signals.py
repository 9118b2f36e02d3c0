"""SIGTERM and SIGINT: every client that is served gets a proper ending, and the process ends in time."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.http_process import LIMIT, RawClient, ServerProcess, events, until
from tests.support.marks import mostly_long

STATUS = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 128 + signal.SIGINT}
signals = pytest.mark.parametrize("number", mostly_long(STATUS, signal.SIGTERM))
DRAIN = 0.3
# Seconds from the end of the drain until the process is gone: two to four tenths on a machine that is not busy. A
# server that waits for those it serves takes a minute here.
SOON = 15.0


@contextmanager
def serving(model: Path, *more: str, drain: float = DRAIN, **environment: str) -> Iterator[ServerProcess]:
    cells = ("--ctx-size", "32768", "--parallel", "2", "--kv-unified")
    command = ("--model", str(model), *cells, "--drain", str(drain), *more)
    with ServerProcess(*command, environment=environment) as process:
        yield process.started()


def assert_shutdown_event(told: list[str]) -> None:
    assert "[DONE]" not in told
    last = json.loads(told[-1])
    assert last["error"]["code"] == "shutdown"
    assert last["usage"]["completion_tokens"] > 0


@signals
def test_what_is_live_gets_its_proper_ending_and_the_process_is_gone(long_model: Path, number: signal.Signals) -> None:
    with serving(long_model) as server, RawClient(server.port) as a, RawClient(server.port) as b:
        streaming, whole = a.post(stream=True), b.post()
        with RawClient(server.port) as c:
            for running in (streaming, whole):
                server.wait_for(running, completion_tokens=lambda n: n > 0)
            waiting = c.post()  # not before: what is sent on several connections may come in any order
            server.wait_for(waiting, status="waiting")
            began = server.signal(number)
            assert_shutdown_event(events(a.answer()))
            for client in (b, c):
                answer = client.answer()
                assert answer.status == 503
                assert int(answer.headers["retry-after"]) >= 1
                assert json.loads(answer.read())["error"]["code"] == "shutdown"
            assert time.monotonic() - began >= DRAIN, "the drain was theirs"
            status = server.wait()
        assert time.monotonic() - began < DRAIN + SOON
        assert status == STATUS[number]
        assert "Traceback" not in server.log
        named = re.search(r"draining: 3 live requests \((.*)\) may go on for [\d.]+ s", server.log)
        assert named is not None
        assert set(named[1].split(", ")) == {streaming, whole, waiting}
        assert "Waiting for connections" not in server.log, "uvicorn's own lines do not say what for"
        for request_id in (streaming, whole, waiting):
            assert server.log.count(f"request {request_id} cancelled (shutdown)") == 1


@pytest.mark.long
@signals
def test_an_idle_server_ends_at_once_and_says_so(long_model: Path, tmp_path: Path, number: signal.Signals) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(LIMIT)
        asked = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000000"}
        with serving(long_model, drain=30.0, **asked) as server:
            # Before it is ready there may be a sign of life: it listened before the model was there.
            told = (told for told in iter(lambda: supervisor.recv(4096), None) if told != b"WATCHDOG=1")
            assert next(told) == b"READY=1\nSTATUS=serving\nWATCHDOG=1"
            began = server.signal(number)
            assert server.wait() == STATUS[number]
            assert time.monotonic() - began < SOON
            assert "Traceback" not in server.log
        assert next(told) == b"STOPPING=1\nSTATUS=draining"


@pytest.mark.long
def test_with_a_delay_it_serves_on_and_its_health_says_that_it_drains(long_model: Path) -> None:
    with serving(long_model, "--drain-delay", "600", drain=600.0) as server:
        server.signal()
        until(lambda: server.http.get("/health").json()["status"], lambda status: status == "draining")
        assert server.http.get("/health").status_code == 503
        asked = {"prompt": "hello", "max_tokens": 1}
        assert server.http.post("/v1/completions", json=asked).status_code == 200
        server.signal()  # out of patience
        assert server.wait() == STATUS[signal.SIGTERM]


@pytest.mark.long
def test_what_ends_within_the_drain_is_complete_and_nothing_new_is_taken_on_a_kept_connection(long_model: Path) -> None:
    with (
        serving(long_model, drain=600.0) as server,
        RawClient(server.port) as streaming,
        RawClient(server.port) as whole,
        RawClient(server.port) as kept,
    ):
        kept.post(max_tokens=1)
        kept.answer().read()
        for request_id in (streaming.post(stream=True, max_tokens=400), whole.post(max_tokens=400)):
            server.wait_for(request_id, completion_tokens=lambda n: n > 0)
        began = server.signal()
        assert kept.is_closed_by_server()
        assert events(streaming.answer())[-1] == "[DONE]"
        answer = whole.answer()
        assert (answer.status, json.loads(answer.read())["usage"]["completion_tokens"]) == (200, 400)
        assert server.wait() == -signal.SIGTERM
        assert time.monotonic() - began < 120.0, "it does not drain when there are no requests"


@pytest.mark.long
@signals
def test_a_second_signal_awaits_no_drain(long_model: Path, number: signal.Signals) -> None:
    with serving(long_model, drain=60.0) as server, RawClient(server.port) as client:
        mine = client.post()
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        server.signal(number)
        server.wait_for_log("draining: 1 live request")
        began = server.signal(number)
        assert server.wait() == STATUS[number]
        assert time.monotonic() - began < SOON
        assert server.log.count(f"request {mine} cancelled (shutdown)") == 1
        assert "Traceback" not in server.log


# Every event holds the model's name, so a few hundred fill every buffer on the way.
LONG_NAME = ("--alias", "x" * 30_000)


@pytest.mark.long
@pytest.mark.parametrize("twice", [False, True], ids=["one-signal", "two-signals"])
def test_a_client_that_does_not_read_cannot_hold_the_process(long_model: Path, *, twice: bool) -> None:
    with (
        serving(long_model, *LONG_NAME, drain=60.0 if twice else DRAIN) as server,
        RawClient(server.port, receive_buffer=4096) as client,
    ):
        server.wait_for(client.post(stream=True), paused=True)
        began = server.signal()
        if twice:
            server.wait_for_log("draining: 1 live request")
            began = server.signal()
        server.wait()
        assert time.monotonic() - began < DRAIN + SOON
        assert twice or "does not read: its connection is closed" in server.log
        assert "Traceback" not in server.log


# -- as the first process of a container, which has no signal that it does not handle ----------------------------------


# Says so when it has come to the first import of the command's own, and stays there.
PROGRAM = """
import os, sys, time

class Stay:
    def find_spec(self, name, path=None, target=None):
        if name == "pyllmcancel.cli.parser":
            os.write(1, b"importing\\n")
            time.sleep(600)

sys.meta_path.insert(0, Stay())
from pyllmcancel.cli import main
sys.exit(main())
"""
ISOLATED = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


def test_a_signal_while_it_imports_ends_it() -> None:
    try:
        subprocess.run([*ISOLATED, "true"], capture_output=True, check=True, timeout=LIMIT)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system gives no process namespaces")
    command = [*ISOLATED, sys.executable, "-c", PROGRAM, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as outer:
        try:
            assert outer.stdout is not None
            assert outer.stdout.readline() == b"importing\n"
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            (inner,) = until(lambda: children.read_text().split(), bool)
            os.kill(int(inner), signal.SIGTERM)
            assert outer.wait(LIMIT) == 128 + signal.SIGTERM
        finally:
            outer.kill()
