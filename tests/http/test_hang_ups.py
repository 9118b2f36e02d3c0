"""A client that closes its socket while the event loop is busy elsewhere: the next step begins without it."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Request
from tests.support.http_process import COMPLETIONS, WAYS_TO_LEAVE, RawClient, until
from tests.support.http_serving import serving
from tests.support.http_world import World
from tests.support.step_gate import TEST_LIMIT


@contextmanager
def busy_loop(request: Request) -> Iterator[None]:
    """The event loop that reads this request's answer does nothing else meanwhile."""
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        assert go_on.wait(TEST_LIMIT)

    assert request.sink.loop is not None
    request.sink.loop.call_soon_threadsafe(work)
    assert busy.wait(TEST_LIMIT)
    try:
        yield
    finally:
        go_on.set()


def accepted(world: World, request_id: str) -> Request:
    """A running request: a step of it is held."""
    world.gate.wait_held()
    found = world.engine.registry.find(request_id)
    assert isinstance(found, Request)
    return found


def everything_from(client: RawClient) -> bytes:
    received = b""
    with suppress(ConnectionResetError):
        while piece := client.socket.recv(65_536):
            received += piece
    return received


@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("n_steps", [0, 2], ids=["prefill", "decode"])
def test_no_busy_event_loop_is_awaited(way: str, stream: bool, n_steps: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.hold()
    with serving(world) as port, RawClient(port) as client:
        mine = accepted(world, client.post(COMPLETIONS, prompt="hello", stream=stream, max_tokens=50, ignore_eos=True))
        for _ in range(n_steps):
            world.gate.let_through()
            world.gate.wait_held()
        with busy_loop(mine):
            client.leave(way)
            assert mine.client is not None
            until(mine.client.has_left, bool)  # the kernel takes its time
            world.gate.let_through()
            ending = mine.ended.result(TEST_LIMIT)
        answer = everything_from(client) if way == "half-close" else b""
    assert ending.cancel_reason is CancelReason.DISCONNECT
    assert world.engine.trace.n_steps == n_steps + 1
    # The server knows of the leaving by the time the answer ends: to one that does not, its end would be a defect.
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    if stream:
        assert not answer.endswith(b"0\r\n\r\n"), "it looks complete"
    else:
        assert answer == b""
