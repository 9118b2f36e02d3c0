"""A server whose engine dies ends, with a status that a supervisor understands, after every client got an answer."""

import json
import signal
import socket
from pathlib import Path

import pytest

from tests.support.http_process import RawClient, ServerProcess, events

# Its engine finds no memory in the first step that begins once there is a file of this name.
DIES = """
import os, sys
from pyllmcancel.cli import main
from pyllmcancel.engine.steps import DecodeSteps
compute = DecodeSteps.compute

def compute_or_die(self, items):
    if os.path.exists(os.environ["DIE"]):
        raise MemoryError("of the test")
    return compute(self, items)

DecodeSteps.compute = compute_or_die
"""
SERVES = "sys.exit(main())"
# It cannot even shut down.
HANGS = """
import asyncio
from pyllmcancel.server.running import process

async def shutdown(self, sockets=None):
    await asyncio.Event().wait()

process.LAST_RESORT_SECONDS = 0.0
process.Server.shutdown = shutdown
"""


def serving(model: Path, tmp_path: Path, program: str, *options: str) -> ServerProcess:
    cells = ("--model", str(model), "--ctx-size", "32768", "--parallel", "2", "--kv-unified")
    environment = {"DIE": str(tmp_path / "die")}
    return ServerProcess(*cells, *options, program=DIES + program, environment=environment)


def test_every_client_gets_an_answer_and_the_process_ends_with_1(long_model: Path, tmp_path: Path) -> None:
    with serving(long_model, tmp_path, SERVES, "--drain", "60") as process:
        server = process.started()
        with RawClient(server.port) as a, RawClient(server.port) as b, RawClient(server.port) as c:
            streaming, whole = a.post(stream=True), b.post()
            for running in (streaming, whole):
                server.wait_for(running, completion_tokens=lambda n: n > 0)
            waiting = c.post()  # not before: what is sent on several connections may come in any order
            server.wait_for(waiting, status="waiting")
            (tmp_path / "die").touch()
            told = events(a.answer())
            assert "[DONE]" not in told
            assert json.loads(told[-1])["error"]["message"] == "the engine died: MemoryError: of the test"
            for client in (b, c):
                answer = client.answer()
                assert answer.status == 500
                assert json.loads(answer.read())["error"]["code"] == "request_failed"
            assert server.wait() == 1
        for request_id in (streaming, whole, waiting):
            assert server.log.count(f"request {request_id} failed in ") == 1
        assert "the engine thread died" in server.log
        with socket.create_server(("127.0.0.1", server.port)):
            pass  # the port is free


@pytest.mark.long
def test_a_process_that_cannot_end_as_it_should_ends_all_the_same(long_model: Path, tmp_path: Path) -> None:
    with serving(long_model, tmp_path, HANGS + SERVES, "--drain", "0") as process:
        server = process.started()
        with RawClient(server.port) as client:
            client.post(stream=True)
            (tmp_path / "die").touch()
            assert server.wait() == -signal.SIGALRM
