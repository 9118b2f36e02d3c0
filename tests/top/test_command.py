"""The command on a terminal of its own, against a server that says what the test says."""

from __future__ import annotations

import asyncio
import builtins
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import main
from tests.clients.terminal import Terminal
from tests.support.http_process import until
from tests.support.scripted_server import STREAM_HEAD, Peer, ScriptedServer, chunk, whole
from tests.top.events import EPOCH, Fields, added, busy_server, ended, entry, event_bytes, over, snapshot

pytestmark = pytest.mark.anyio

CANCELLED = {"id": "key-2", "outcome": "cancelled", "reason": "explicit", "phase": "decode", "cancel_latency_ms": 1.94}


class Watched:
    """The program on its terminal; every wait is in a thread, for the server lives in the test's event loop."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    async def shows(self, text: str) -> str:
        await asyncio.to_thread(self.terminal.until_drawn, text)
        return self.terminal.drawn

    def press(self, keys: str) -> None:
        self.terminal.press(keys)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.terminal.wait)


@asynccontextmanager
async def top(
    url: str, folder: Path, *options: str, size: tuple[int, int] = (80, 24), **environment: str
) -> AsyncIterator[Watched]:
    command = [sys.executable, "-m", "pyllmcancel", "top", "--url", url, *options]
    clean = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with Terminal(command, clean | environment, folder, size) as terminal:
        try:
            yield Watched(terminal)
        finally:
            terminal.signal(signal.SIGTERM)
            await asyncio.to_thread(terminal.wait)


async def begin(server: ScriptedServer, events: list[Fields]) -> Peer:
    """Take the next connection, and tell it these events."""
    peer = await server.peer()
    await peer.receive()
    peer.send(STREAM_HEAD)
    tell(peer, *events)
    return peer


def tell(peer: Peer, *events: Fields) -> None:
    for fields in events:
        peer.send(chunk(event_bytes(fields, "b1-1")))


async def test_a_request_is_chosen_and_cancelled_and_the_latency_is_told(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with top(server.url, tmp_path) as watched:
        peer = await begin(server, busy_server())
        drawn = await watched.shows("agent-main")
        assert "pyllmcancel 1.2.3  small-model" in drawn
        watched.press("c")
        await watched.shows("nothing is selected")
        watched.press("jj\x1b[A\x1b[B")
        await watched.shows("> key-2")
        watched.press("c")
        asked = await server.peer()
        assert (await asked.receive()).line == "POST /v1/requests/key-2/cancel HTTP/1.1"
        await watched.shows("cancelling key-2")
        asked.send(whole(CANCELLED | {"usage": {"completion_tokens": 13}}))
        await watched.shows("key-2: compute stopped after 1.9 ms, in decode, 13 tokens generated")
        tell(peer, ended(over("key-2", 12.5, cancel_reason="explicit", cancel_latency_ms=1.94)))
        await watched.shows("cancelled: explicit")
        watched.press("q")
        assert await watched.ended() == 0
        assert watched.terminal.is_as_found


async def test_the_selection_never_moves_by_itself(server: ScriptedServer, tmp_path: Path) -> None:
    async with top(server.url, tmp_path) as watched:
        peer = await begin(server, [snapshot(), added(entry("one")), added(entry("two"))])
        await watched.shows("two")
        watched.press("j")
        await watched.shows("> one")
        tell(peer, ended(over("one", 1.0)))
        await watched.shows("finished")
        watched.press("c")
        await watched.shows("nothing is selected")
        assert server.n_connections == 1


async def test_a_session_is_cancelled(server: ScriptedServer, tmp_path: Path) -> None:
    async with top(server.url, tmp_path) as watched:
        await begin(server, [snapshot(entry("one"), entry("two", session="s/1"))])
        await watched.shows("two")
        watched.press("js")
        await watched.shows("one has no session")
        watched.press("js")
        asked = await server.peer()
        assert (await asked.receive()).line == "POST /v1/sessions/s%2F1/cancel HTTP/1.1"
        asked.send(whole({"requests": [CANCELLED, CANCELLED]}))
        await watched.shows("session s/1: 2 requests cancelled, compute stopped after at most 1.9 ms")


async def test_a_restart_of_the_server_is_shown(server: ScriptedServer, tmp_path: Path) -> None:
    async with top(server.url, tmp_path) as watched:
        peer = await begin(server, [snapshot(entry("before"))])
        await watched.shows("before")
        peer.abort()
        await watched.shows("the connection broke: ")
        loading = await server.peer()
        await loading.receive()
        loading.send(whole({"error": {"message": "the model is loading"}}, "503 Service Unavailable"))
        await watched.shows("503: the model is loading: ")
        await loading.receive()
        loading.send(STREAM_HEAD)
        tell(loading, snapshot(entry("after"), boot="b2", epoch=EPOCH + 20))
        drawn = await watched.shows("the server has started again: 20 s were missed")
        assert "before" not in drawn
        assert "connected" in drawn.splitlines()[0]


async def test_help_comes_and_goes_and_the_screen_follows_its_terminal(server: ScriptedServer, tmp_path: Path) -> None:
    async with top(server.url, tmp_path, size=(100, 30)) as watched:
        await begin(server, busy_server())
        await watched.shows("agent-main")
        watched.press("?")
        drawn = await watched.shows("cancel its session, and the sessions below it")
        assert "agent-main" not in drawn
        watched.press("c?")
        drawn = await watched.shows("agent-main")
        assert "nothing is selected" not in drawn


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
async def test_a_signal_gives_the_terminal_back(
    server: ScriptedServer, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    async with top(server.url, tmp_path) as watched:
        await begin(server, busy_server())
        await watched.shows("agent-main")
        assert not watched.terminal.is_as_found
        watched.terminal.signal(number)
        assert await watched.ended() == status
        assert watched.terminal.is_as_found


async def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(server: ScriptedServer, tmp_path: Path) -> None:
    async with top(server.url, tmp_path) as watched:
        await begin(server, busy_server())
        await watched.shows("agent-main")
        watched.terminal.signal(signal.SIGTSTP)
        await asyncio.to_thread(until, lambda: watched.terminal.is_as_found, bool)
        watched.terminal.signal(signal.SIGCONT)
        await asyncio.to_thread(until, lambda: watched.terminal.is_as_found, lambda found: not found)
        watched.press("?")
        await watched.shows("cancel its session, and the sessions below it")


async def test_a_key_that_is_refused_later_gives_the_terminal_back_and_says_so(
    server: ScriptedServer, tmp_path: Path
) -> None:
    async with top(server.url, tmp_path) as watched:
        peer = await begin(server, busy_server())
        await watched.shows("agent-main")
        peer.abort()
        again = await server.peer()
        await again.receive()
        again.send(whole({}, "401 Unauthorized"))
        assert await watched.ended() == 1
        assert watched.terminal.is_as_found
        assert "wants an API key: give one with --api-key" in watched.terminal.drawn.replace("\n", " ")


async def run_without_a_terminal(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pyllmcancel", "top", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_without_a_terminal_it_prints_one_picture(server: ScriptedServer) -> None:
    running = asyncio.create_task(run_without_a_terminal("--url", server.url, PYLLMCANCEL_API_KEY="secret"))
    peer = await server.peer()
    assert (await peer.receive()).headers["authorization"] == "Bearer secret"
    peer.send(STREAM_HEAD)
    tell(peer, snapshot(entry("waits", session="[red]x"), over("\x1b[2Jdone", 0.0)))
    status, out, err = await running
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "session [red]x" in out
    assert "q quit" not in out


async def test_without_a_terminal_the_picture_has_every_replica_that_serves(server: ScriptedServer) -> None:
    running = asyncio.create_task(run_without_a_terminal("--url", server.url))
    peer = await server.peer()
    await peer.receive()
    peer.send(STREAM_HEAD)
    models = [{"id": name, "replica": name, "status": {"value": "loaded"}} for name in ("one", "two")]
    for fields in (
        {"type": "models", "models": models},
        snapshot() | {"replica": "one"},
        snapshot(entry("there")) | {"replica": "two"},
    ):
        peer.send(chunk(event_bytes(fields, "")))
    status, out, err = await running
    assert (status, err) == (0, "")
    assert "there" in out


@pytest.mark.parametrize(
    ("locale", "glyph"), [("utf-8", "\N{BOX DRAWINGS LIGHT DOUBLE DASH HORIZONTAL}"), ("ascii", "?")]
)
async def test_shapes_are_those_that_the_output_can_carry(server: ScriptedServer, locale: str, glyph: str) -> None:
    running = asyncio.create_task(run_without_a_terminal("--url", server.url, PYTHONIOENCODING=locale))
    peer = await begin(server, [snapshot(entry("\u6771"))])
    status, out, _ = await running
    peer.close()
    assert status == 0
    assert f"{glyph} not seen" in out


async def test_an_error_is_one_line(server: ScriptedServer) -> None:
    running = asyncio.create_task(run_without_a_terminal("--url", server.url))
    peer = await server.peer()
    await peer.receive()
    peer.send(whole({}, "404 Not Found"))
    status, out, err = await running
    assert (status, out) == (1, "")
    assert err.startswith("pyllmcancel: there is no feed at")
    assert err.count("\n") == 1


@pytest.mark.parametrize("missing", ["httpx", "rich"])
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
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
