"""SIGTERM, SIGINT and SIGKILL in every phase of a server's life: it is gone, and nothing of it is left.

A server that has come to the phase says so in a line, and stays there until the signal has come: in an import, in the
load, between two steps. No test waits for a time.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.http_process import LIMIT, RawClient, ServerProcess, long_prompt, until
from tests.support.marks import mostly_long

STATUS = {signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 128 + signal.SIGINT, signal.SIGKILL: -signal.SIGKILL}
BEGIN = """
import os, sys, time

def say(line):
    os.write(2, (line + "\\n").encode())
"""
IMPORTING = """
class Stay:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["IMPORTED"]:
            sys.meta_path.remove(self)
            say("phase import")
            while True:
                time.sleep(0.01)

sys.meta_path.insert(0, Stay())
"""
# Halfway through the load, which goes on telling its progress, as llama.cpp does, until it is given up.
LOADING = """
from pyllmcancel.engine.engine import Engine
load = Engine.load

def halted(*args, progress, **options):
    def halt(fraction):
        say("phase load")
        while progress(fraction):
            time.sleep(0.01)
        return False
    return load(*args, progress=halt, **options)

Engine.load = halted
"""
# A call that asks nobody: the kernel reads a file from a slow disk.
STUCK = """
from pyllmcancel.engine.engine import Engine

def halted(*args, **options):
    say("phase load")
    while True:
        time.sleep(0.01)

Engine.load = halted
"""
# The model is there and serves, and its template is being prepared, until the application closes.
PREPARING = """
from pyllmcancel.server import state
close, closing = state.ServerState.close, []

def halted(self):
    say("phase template")
    while not closing:
        time.sleep(0.01)

def close_and_note(self, drain):
    closing.append(drain)
    return close(self, drain)

state.ServerState._prepare_template, state.ServerState.close = halted, close_and_note
"""
# The end of the application: the engine is closed, and everything waits for the second signal.
ENDING = """
import threading
from pyllmcancel.engine.loading import Loading
from pyllmcancel.server.running import process
close, handle_exit, second = Loading.close, process.Server.handle_exit, threading.Event()

def halted(self):
    close(self)
    say("phase end")
    second.wait()

def handle_and_count(self, number, frame):
    if self.should_exit:
        second.set()
    handle_exit(self, number, frame)

Loading.close, process.Server.handle_exit = halted, handle_and_count
"""
SERVE = """
from pyllmcancel.cli import main
sys.exit(main())
"""
CELLS = ("--ctx-size", "32768", "--parallel", "2", "--kv-unified")
signals = pytest.mark.parametrize("number", mostly_long(STATUS, signal.SIGTERM), ids=lambda number: number.name)


def session_of(pid: int) -> list[int]:
    """Processes of the session that `pid` leads or led, zombies excepted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, *fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == pid and state != "Z":
                found.append(int(entry.name))
    return found


@contextmanager
def begun(model: Path, program: str, *options: str, **environment: str) -> Iterator[ServerProcess]:
    options = ("--model", str(model), *CELLS, *options)
    program = BEGIN + program + SERVE
    with ServerProcess(*options, program=program, environment=environment, start_new_session=True) as process:
        yield process
        until(lambda: session_of(process.pid), lambda left: not left)
        assert "Traceback" not in process.log, process.log


def assert_gone(process: ServerProcess, number: signal.Signals) -> None:
    assert process.wait() == STATUS[number], process.log


# The command's own modules, the engine's, and the web framework's, which are imported while the model loads.
@pytest.mark.long
@pytest.mark.parametrize("module", ["argparse", "pyllmcancel.engine", "uvicorn", "pyllmcancel.server.app"])
@signals
def test_while_it_imports(long_model: Path, module: str, number: signal.Signals) -> None:
    with begun(long_model, IMPORTING, IMPORTED=module) as process:
        process.wait_for_log("phase import")
        process.signal(number)
        assert_gone(process, number)


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "phase"),
    [(LOADING, "load"), (STUCK, "load"), (PREPARING, "template")],
    ids=["load", "load that cannot be asked to stop", "template"],
)
@signals
def test_while_it_gets_ready(long_model: Path, program: str, phase: str, number: signal.Signals) -> None:
    with begun(long_model, program, "--drain", "0") as process:
        process.wait_for_log(f"phase {phase}")
        process.wait_for_log("running on http")
        process.signal(number)
        assert_gone(process, number)
        assert "is ready after" not in process.log


def work(server: ServerProcess, stack: ExitStack, phase: str) -> None:
    """Have a request come to this phase."""
    client = stack.enter_context(RawClient(server.port))
    if phase == "prefill":
        server.wait_for(client.post(prompt=long_prompt()), prompt_tokens_done=lambda n: n > 0)
    elif phase == "decode":
        server.wait_for(client.post(stream=True), completion_tokens=lambda n: n > 0)


@pytest.mark.parametrize("phase", mostly_long(["idle", "prefill", "decode"], "decode"))
@signals
def test_it_serves(long_model: Path, phase: str, number: signal.Signals) -> None:
    with begun(long_model, "", "--drain", "0") as process, ExitStack() as stack:
        server = process.started()
        work(server, stack, phase)
        server.signal(number)
        assert_gone(server, number)
        with socket.create_server(("127.0.0.1", server.port)):
            pass  # the port is free


@pytest.mark.long
@pytest.mark.parametrize(("program", "phase"), [("", "draining: 1 live request"), (ENDING, "phase end")])
@signals
def test_while_it_drains_or_ends(long_model: Path, program: str, phase: str, number: signal.Signals) -> None:
    drains = not program
    with begun(long_model, program, "--drain", str(10 * LIMIT if drains else 0)) as process, ExitStack() as stack:
        server = process.started()
        work(server, stack, "decode" if drains else "idle")
        server.signal(signal.SIGTERM)
        server.wait_for_log(phase)
        server.signal(number)
        # Uvicorn raises both signals once more in the end, and a SIGTERM ends what it meets.
        expected = -(signal.SIGKILL if number is signal.SIGKILL else signal.SIGTERM)
        assert process.wait() == expected, process.log
