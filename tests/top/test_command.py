"""The command on a terminal of its own, against a server that says what the test says; the last one is real."""

import builtins
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import main
from tests.clients.terminal import Terminal
from tests.support.http_process import RawClient, ServerProcess, until
from tests.top.stage import Stage, cancelled, entry

CANCELLED = {"id": "two", "outcome": "cancelled", "reason": "explicit", "phase": "decode", "cancel_latency_ms": 1.94}


def top(url: str, folder: Path) -> Terminal:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Terminal([sys.executable, "-m", "pyllmcancel", "top", "--url", url], environment, folder, (100, 24))


def test_a_request_is_chosen_and_cancelled_and_the_latency_is_told(stage: Stage, tmp_path: Path) -> None:
    stage.show(entry("one"), entry("two"))
    stage.say("/v1/requests/two/cancel", CANCELLED)
    with top(stage.url, tmp_path) as terminal:
        terminal.until_drawn("pyllmcancel 1.2.3 small-model")
        terminal.press("c")
        terminal.until_drawn("nothing is selected")
        terminal.press("jj\x1b[A\x1b[B")
        terminal.until_drawn("> two")
        terminal.press("c")
        terminal.until_drawn("two: compute stopped after 1.9 ms, in decode")
        assert stage.posted == ["/v1/requests/two/cancel"]
        stage.show(entry("one"), cancelled("two", "explicit", 1.94))
        terminal.until_drawn("cancelled: explicit")
        terminal.press("q")
        assert terminal.wait() == 0
        assert terminal.is_as_found


def test_the_selection_never_moves_by_itself(stage: Stage, tmp_path: Path) -> None:
    stage.show(entry("one"), entry("two"))
    with top(stage.url, tmp_path) as terminal:
        terminal.until_drawn("two")
        terminal.press("j")
        terminal.until_drawn("> one")
        stage.show(entry("two"), entry("one", status="finished", finish_reason="length"))
        terminal.until_drawn("length")
        terminal.press("c")
        terminal.until_drawn("nothing is selected")
        assert stage.posted == []


def test_a_session_is_cancelled(stage: Stage, tmp_path: Path) -> None:
    stage.show(entry("one"), entry("two", session="s/1"))
    stage.say("/v1/sessions/s%2F1/cancel", {"requests": [CANCELLED]})
    with top(stage.url, tmp_path) as terminal:
        terminal.until_drawn("two")
        terminal.press("js")
        terminal.until_drawn("the request has no session")
        terminal.press("js")
        terminal.until_drawn("s/1: compute stopped after 1.9 ms")


def test_a_server_that_does_not_answer_is_waited_for(stage: Stage, tmp_path: Path) -> None:
    with top(stage.url, tmp_path) as terminal:
        terminal.until_drawn("q quit")
        stage.say("/v1/requests", {"error": {"message": "the model is loading"}}, 503)
        terminal.until_drawn("trying again: 127.0.0.1 answers 503: the model is loading")
        stage.show(entry("after"))
        terminal.until_drawn("after")
        assert "trying again" not in terminal.drawn


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back(stage: Stage, tmp_path: Path, number: signal.Signals, status: int) -> None:
    with top(stage.url, tmp_path) as terminal:
        terminal.until_drawn("q quit")
        assert not terminal.is_as_found
        terminal.signal(number)
        assert terminal.wait() == status
        assert terminal.is_as_found


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(stage: Stage, tmp_path: Path) -> None:
    with top(stage.url, tmp_path) as terminal:
        terminal.until_drawn("q quit")
        terminal.signal(signal.SIGTSTP)
        until(lambda: terminal.is_as_found, bool)
        terminal.signal(signal.SIGCONT)
        until(lambda: terminal.is_as_found, lambda found: not found)
        terminal.press("c")
        terminal.until_drawn("nothing is selected")


def without_a_terminal(*arguments: str, **environment: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pyllmcancel", "top", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_without_a_terminal_it_prints_one_picture(stage: Stage, encoding: str) -> None:
    stage.show(entry("waits", session="[red]\u6771"), entry("\x1b[2Jdone"))
    options = {"PYTHONIOENCODING": encoding, "PYLLMCANCEL_API_KEY": "secret", "COLUMNS": "100"}
    status, out, err = without_a_terminal("--url", stage.url, **options)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "session [red]" in out
    assert "q quit" not in out
    assert stage.keys == {"Bearer secret"}


def test_an_error_is_one_line(stage: Stage) -> None:
    stage.say("/v1/requests", {}, 404)
    status, out, err = without_a_terminal("--url", stage.url)
    assert (status, out) == (1, "")
    assert err == "pyllmcancel: 127.0.0.1 answers 404: is it a pyllmcancel? --url names another\n"


@pytest.mark.parametrize("missing", ["httpx", "rich"])
def test_extras_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str) -> None:
    for name in [name for name in sys.modules if name.startswith("pyllmcancel.top")]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, globals_: Mapping[str, Any] | None = None, *rest: Any) -> Any:
        if name.partition(".")[0] == missing and "pyllmcancel" in str((globals_ or {}).get("__name__")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, globals_, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["top"]) == 2
    assert capsys.readouterr().err == f"pyllmcancel: {missing} is missing: pip install 'pyllmcancel[top]'\n"


def test_a_cancel_by_a_key_stops_the_computation(tmp_path: Path, long_model: Path) -> None:
    with (
        ServerProcess("--model", str(long_model), "--parallel", "2").started() as server,
        top(server.url, tmp_path) as terminal,
        RawClient(server.port) as client,
    ):
        terminal.until_drawn("slots 0/2")
        asked = client.post(ignore_eos=True, max_tokens=90_000, session_id="mine")
        terminal.until_drawn("session mine")
        terminal.press("j")
        terminal.until_drawn(f"> {asked[:12]}")
        terminal.press("c")
        terminal.until_drawn("compute stopped after ")
        terminal.until_drawn("cancelled: explicit")
        assert server.request(asked)["status"] == "cancelled"
        terminal.press("q")
        assert terminal.wait() == 0
