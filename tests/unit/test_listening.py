"""The sockets that are listened on, before there is a server."""

import asyncio
import errno
import re
import socket
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from pyllmcancel.server.http.listening import Listener, listen, quiet_about_files
from pyllmcancel.server.limits import ACCEPT_AT_ONCE
from tests.support.step_gate import TEST_LIMIT


@pytest.mark.parametrize("name", ["nowhere.invalid", "a" * 64 + ".invalid"], ids=["unknown", "impossible"])
def test_a_name_without_an_address_says_so(name: str) -> None:
    with pytest.raises(OSError, match=rf"cannot listen on {re.escape(name)}:80: "):
        listen(name, 80)


def test_several_addresses_are_listened_on_or_none() -> None:
    first, second = listen("127.0.0.1, 127.0.0.2", 0)
    with first, second:
        assert [one.getsockname()[0] for one in (first, second)] == ["127.0.0.1", "127.0.0.2"]
        port = second.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.2:{port}: address already in use"):
            listen("127.0.0.3,127.0.0.2", port)
        (third,) = listen("127.0.0.3", port)
        third.close()


async def accepted_of(n: int) -> tuple[int, int]:
    """How many of `n` waiting connections asyncio accepts, and in how many turns of the event loop."""
    (listener,) = listen("127.0.0.1", 0)
    loop, all_there = asyncio.get_running_loop(), asyncio.Event()
    accepted: list[asyncio.StreamWriter] = []
    turns: set[int] = set()
    turn = 0

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        turns.add(turn)
        if len(accepted) == n:
            all_there.set()

    with ExitStack() as stack:
        stack.enter_context(listener)
        for _ in range(n):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        count()
        server = await asyncio.start_server(note, sock=listener)
        async with asyncio.timeout(TEST_LIMIT):
            await all_there.wait()
        server.close()
        for writer in accepted:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
    return len(accepted), len(turns)


def test_asyncio_asks_the_listener_for_each_connection_and_heeds_its_turns() -> None:
    n = 3 * ACCEPT_AT_ONCE
    accepted, turns = asyncio.run(accepted_of(n))
    assert accepted == n
    assert turns >= 3


def test_without_a_descriptor_left_it_is_tried_once_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def accept(_: socket.socket) -> Any:
        tried.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    with Listener() as listener:
        with pytest.raises(OSError, match="Too many"):
            listener.accept()
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert len(tried) == 1


def test_to_have_no_descriptor_is_said_in_a_line_and_a_defect_is_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    try:
        quiet_about_files(loop, {"exception": OSError(errno.EMFILE, "Too many open files"), "socket": None})
        (line,) = caplog.records
        assert (line.levelname, line.exc_info) == ("WARNING", None)
        quiet_about_files(loop, {"message": "a defect", "exception": OSError(errno.EMFILE, "Too many open files")})
        assert "a defect" in caplog.text
    finally:
        loop.close()
