"""The messages that a supervisor gets, over a socket such as systemd's."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllmcancel.server.running.supervised import State, Supervision, beat_interval

pytestmark = pytest.mark.anyio
LIMIT = 60.0


@pytest.fixture(params=["path", "abstract name"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify") if request.param == "path" else f"\0pyllmcancel-{os.getpid()}")
        listener.setblocking(False)
        yield listener


def address_of(supervisor: socket.socket) -> str:
    name = supervisor.getsockname()
    return name if isinstance(name, str) else "@" + name[1:].decode()


def told(supervisor: socket.socket) -> list[list[str]]:
    found = []
    while True:
        try:
            found.append(supervisor.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return found


def test_it_is_ready_when_the_port_listens_and_the_model_is_there_and_only_once(supervisor: socket.socket) -> None:
    state: State = "ok"
    supervision = Supervision.of({"NOTIFY_SOCKET": address_of(supervisor)}, lambda: state)
    supervision.look()
    assert told(supervisor) == []  # nothing listens yet
    state = "loading"
    supervision.start()
    assert told(supervisor) == []
    state = "ok"
    supervision.look()
    supervision.look()
    supervision.stopping()
    assert told(supervisor) == [["READY=1", "STATUS=serving"], ["STOPPING=1", "STATUS=draining"]]


async def test_signs_of_life_end_while_the_engine_is_stalled_and_come_again(supervisor: socket.socket) -> None:
    states: list[State] = ["loading"]
    seen = asyncio.Event()

    def look() -> State:
        seen.set()
        return states[-1]

    supervision = Supervision(address_of(supervisor), 0.001, look)
    supervision.start()
    assert told(supervisor) == [["WATCHDOG=1"]]
    cases: list[tuple[State, bool]] = [("stalled", False), ("ok", True), ("draining", True), ("failed", False)]
    for state, beats in cases:
        states.append(state)
        seen.clear()
        await asyncio.wait_for(seen.wait(), LIMIT)
        # What the look before this one told is read, and then this one's.
        told(supervisor)
        supervision.look()
        assert ["WATCHDOG=1" in news for news in told(supervisor)] == ([True] if beats else [])
    supervision.stop()
    supervision.stop()
    told(supervisor)
    supervision.look()
    assert told(supervisor) == [], "after the end it tells nothing"


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "90000000"}, 45.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": str(os.getpid())}, 45.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_it_beats_twice_as_often_as_needed_if_meant(environment: dict[str, str], seconds: float | None) -> None:
    assert beat_interval(environment) == seconds


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_a_supervisor_nothing_happens(address: str, caplog: pytest.LogCaptureFixture) -> None:
    supervision = Supervision.of({"NOTIFY_SOCKET": address}, lambda: "ok")
    supervision.start()
    supervision.stopping()
    assert caplog.text == ""


def test_a_supervisor_that_left_or_does_not_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "notify"
    Supervision(str(path), None, lambda: "ok").stopping()
    assert (
        "STOPPING=1, STATUS=draining could not be reported to the supervisor: No such file or directory" in caplog.text
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        for _ in range(10_000):
            Supervision(str(path), None, lambda: "ok").stopping()
            if "unavailable" in caplog.text:
                break
    assert "Resource temporarily unavailable" in caplog.text
