"""The other process: what it says, and what becomes of it when it says nothing."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pyllmcancel.errors import BusyError, EngineClosedError
from pyllmcancel.helper import Helper, HelperEnded, HelperError
from pyllmcancel.pausing import Pause, no_pause
from pyllmcancel.server.errors.responses import api_error
from pyllmcancel.system import start_with_socket, wait_readable

CPU_SECONDS = 0.5
ENOUGH_SECONDS = 8.0  # of a processor, to ask for more memory than there is
ENDLESS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
GREEDY = "{{ ('x' * 1000000000) | length }}"


def pid_of(helper: Helper) -> int | None:
    process = helper._process
    return None if process is None else process.pid


def template(source: str, cpu_seconds: float = CPU_SECONDS) -> Helper:
    return Helper("open_template", source, "", "", "", cpu_seconds=cpu_seconds)


def render(helper: Helper, text: str, pause: Pause = no_pause) -> str:
    question = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": False}
    return helper.call("apply_template", question, pause=pause)["prompt"]


@pytest.fixture
def helper() -> Iterator[Helper]:
    """It renders; "endless" is a message over which it does not come to an end."""
    made = template(except_for("endless", ENDLESS))
    yield made
    made.close()


def except_for(text: str, otherwise: str) -> str:
    """A template that repeats its input."""
    return f"{{% if messages[-1].content == '{text}' %}}{otherwise}{{% endif %}}{{{{ messages[-1].content }}}}"


def test_an_opening_that_was_answered_in_time_may_be_read_at_any_time(helper: Helper) -> None:
    helper.begin()
    begun = pid_of(helper)
    while not wait_readable(helper._socket, 1.0):
        pass
    helper._opens_until = time.monotonic() - 1.0  # its first call comes long after the start
    assert helper.open()["caps"]["supports_tools"]
    assert pid_of(helper) == begun


def test_an_error_of_the_function_is_told_and_the_process_stays(helper: Helper) -> None:
    helper.open()
    before = pid_of(helper)
    with pytest.raises(HelperError, match="missing 1 required"):
        helper.call("apply_template")
    assert render(helper, "x") == "x"
    assert pid_of(helper) == before


def test_what_needs_too_much_memory_is_told_and_the_next_call_works() -> None:
    with contextlib.closing(template(except_for("greedy", GREEDY), ENOUGH_SECONDS)) as helper:
        with pytest.raises(HelperError, match=r"memory|bad_alloc"):
            render(helper, "greedy")
        assert render(helper, "x") == "x"


def test_a_server_that_is_large_itself_keeps_the_process(helper: Helper) -> None:
    # The peak of who starts a process is told as the process's own.
    ballast = b"x" * (300 << 20)
    helper.open()
    before = pid_of(helper)
    del ballast
    assert render(helper, "x") == "x"
    assert pid_of(helper) == before


def test_a_process_tired_by_opening_answers_all_the_same(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from pyllmcancel.chat import helper_process as process; process.TIRED_MIB = -1024; process.main()"

    def tired(command: list[str], theirs: socket.socket) -> subprocess.Popen[bytes]:
        return start_with_socket([sys.executable, "-P", "-c", program, *command[-2:]], theirs)

    monkeypatch.setattr("pyllmcancel.helper.start_with_socket", tired)
    for text in "xy":
        assert render(helper, text) == text
        assert pid_of(helper) is None  # the next call has another


def test_a_call_whose_process_is_killed_is_made_again(helper: Helper) -> None:
    killed: list[int] = []

    def kill_once() -> None:
        if not killed and pid_of(helper) is not None:
            killed.append(pid_of(helper))
            os.kill(pid_of(helper), signal.SIGKILL)

    helper.open()
    with pytest.raises(HelperEnded, match="takes longer"):  # the second time it is ended for a reason of its own
        render(helper, "endless", kill_once)
    assert killed


@pytest.mark.parametrize(("number", "why"), [(signal.SIGKILL, "killed"), (signal.SIGSTOP, "survives|too busy")])
def test_a_call_whose_process_ends_or_stops_each_time_is_refused_and_not_blamed(
    helper: Helper, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    def end() -> None:
        if pid_of(helper) is not None and (number == signal.SIGKILL or helper._opens_until is None):
            os.kill(pid_of(helper), number)

    with monkeypatch.context() as patch:
        if number == signal.SIGSTOP:
            patch.setattr("pyllmcancel.helper.PATIENT_SECONDS", 0.5)
        with pytest.raises(BusyError, match=why) as refused:
            render(helper, "endless", end)
    told = api_error(refused.value)
    assert (told.status, told.headers()["Retry-After"]) == (503, "1")
    assert render(helper, "x") == "x"


@pytest.mark.parametrize("text", ["x", "x" * (2 << 20)], ids=["short", "longer than the socket takes"])
def test_a_stopped_process_is_replaced_and_the_call_is_made_again(helper: Helper, text: str) -> None:
    helper.open()
    before = pid_of(helper)
    os.kill(before, signal.SIGSTOP)
    assert render(helper, text) == text
    assert pid_of(helper) != before


def test_without_room_for_a_process_a_call_says_try_again_later_and_the_next_one_works(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("subprocess.Popen", full)
        with pytest.raises(BusyError, match="no process can be started at present"):
            render(helper, "x")
    assert render(helper, "x") == "x"


def test_callers_that_give_up_while_it_starts_leave_it_to_the_next(helper: Helper) -> None:
    class GivenUp(Exception):  # noqa: N818
        pass

    def pause() -> None:
        if helper._opens_until is not None:
            raise GivenUp

    started = set()
    while True:
        try:
            assert render(helper, "x", pause) == "x"
        except GivenUp:
            started.add(pid_of(helper))
            continue
        break
    assert started == {pid_of(helper)}


def test_closing_ends_a_call_in_progress_and_all_later_ones(helper: Helper) -> None:
    helper.open()
    begun = threading.Event()
    outcome: list[Exception] = []

    def call() -> None:
        try:
            render(helper, "endless", begun.set)
        except EngineClosedError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(60)
    helper.close()
    thread.join(60)
    with pytest.raises(EngineClosedError, match="shutting down"):
        render(helper, "x")
    assert len(outcome) == 1
    assert pid_of(helper) is None


def test_libraries_do_not_count_as_memory_that_calls_take() -> None:
    program = (
        "import sys; from pyllmcancel.chat import helper_process as process\n"
        "def limit(mib): sys.exit(10 + ('pyllmcancel._native' in sys.modules))\n"
        "process.limit_memory = limit\n"
        "process.main()\n"
    )
    command = [sys.executable, "-P", "-c", program, "2", "512"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 11
