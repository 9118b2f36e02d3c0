"""The command beside a real server: what it shows is what the server does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.clients.terminal import Terminal
from tests.support.http_process import RawClient, ServerProcess


def top(url: str, folder: Path) -> Terminal:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return Terminal([sys.executable, "-m", "pyllmcancel", "top", "--url", url], environment, folder, (120, 30))


def test_a_cancel_by_a_key_stops_the_computation(tmp_path: Path, long_model: Path) -> None:
    with (
        ServerProcess("--model", str(long_model), "--parallel", "2").started() as server,
        top(server.url, tmp_path) as terminal,
        RawClient(server.port) as client,
    ):
        terminal.until_drawn("connected")
        asked = client.post(ignore_eos=True, max_tokens=90_000, session_id="mine")
        terminal.until_drawn("session mine: 1 running")
        terminal.press("j")
        terminal.until_drawn(f"> {asked[:30]}")
        terminal.press("c")
        terminal.until_drawn("compute stopped after ")
        terminal.until_drawn("cancelled: explicit")
        assert server.request(asked)["status"] == "cancelled"
        terminal.press("q")
        assert terminal.wait() == 0


def test_it_goes_on_with_the_next_server_on_the_same_port(tmp_path: Path) -> None:
    with ServerProcess().started() as first, top(first.url, tmp_path) as terminal:
        terminal.until_drawn("connected")
        first.signal(signal.SIGKILL)
        first.wait()
        terminal.until_drawn("trying again")
        with ServerProcess("--port", str(first.port)).started():
            terminal.until_drawn("the server has started again")
            terminal.until_drawn("connected")
