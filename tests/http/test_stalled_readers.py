"""Clients that stop reading without closing: generation pauses, and after a while they are cancelled as stalled. And
clients that close their sockets while the event loop is busy elsewhere: the next step begins without them.
"""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Request
from tests.http.conftest import CONTEXT
from tests.support.fake_model import Model
from tests.support.http_process import COMPLETIONS, WAYS_TO_LEAVE, RawClient, ServerProcess, until
from tests.support.http_serving import serving
from tests.support.http_world import World
from tests.support.step_gate import TEST_LIMIT

SMALL = 4_096  # bytes that the client's kernel takes for it
N_TOKENS = 30_000  # of an answer; each is an event of more than 200 bytes
# The same, of the fake model; there each event has the model's name, so that some hundred fill every buffer.
N_FAKE, N_CONTEXT = 1_500, 2_048
ALIAS = "x" * 3_000


@pytest.fixture(scope="module")
def strict(long_model: Path) -> Iterator[ServerProcess]:
    """A server with one slot that does not wait long for readers."""
    options = ("--ctx-size", str(CONTEXT), "--parallel", "1", "--reader-stall", "1")
    with ServerProcess("--model", str(long_model), *options) as process:
        yield process.started()
        process.signal()
        assert process.wait() == -signal.SIGTERM


def read_one_byte(client: RawClient) -> str:
    """Ask for a stream, and stop reading at its first byte."""
    request_id = client.post(COMPLETIONS, stream=True, max_tokens=N_TOKENS, ignore_eos=True)
    assert client.socket.recv(1)
    return request_id


def test_one_that_stops_at_the_first_byte_is_cancelled_as_stalled(strict: ServerProcess) -> None:
    with RawClient(strict.port, receive_buffer=SMALL) as client:
        request_id = read_one_byte(client)
        seen = strict.wait_for(request_id, status="cancelled")
        assert (seen["cancel_reason"], seen["phase"], seen["finish_reason"]) == ("stalled", "decode", "cancelled")
        assert b"[DONE]" not in everything_from(client), "it must not look complete"
    assert seen["completion_tokens"] < N_TOKENS / 10, "it was not computed for meanwhile"
    strict.wait_for_log(rf"request {request_id} cancelled \(stalled\) in decode")
    strict.wait_for_log("does not read: its connection is closed")
    assert "Traceback" not in strict.log
    metrics = strict.http.get("/metrics").text
    assert 'pyllmcancel_requests_cancelled_total{reason="stalled"}' in metrics


@pytest.mark.long
def test_its_slot_is_anothers_while_it_is_paused(long_model: Path) -> None:
    options = ("--model", str(long_model), "--ctx-size", str(CONTEXT), "--parallel", "1", "--reader-stall", "0")
    with ServerProcess(*options) as server, RawClient(server.started().port, receive_buffer=SMALL) as client:
        request_id = read_one_byte(client)
        paused = server.wait_for(request_id, paused=True, slots=[])
        assert (paused["status"], paused["phase"], paused["slots"]) == ("running", "decode", [])
        assert "\npyllmcancel_requests_paused 1.0\n" in server.http.get("/metrics").text
        assert server.http.post(COMPLETIONS, json={"prompt": "another", "max_tokens": 3}).status_code == 200
        assert server.request(request_id)["completion_tokens"] == paused["completion_tokens"]
        assert server.cancel(request_id)["outcome"] == "cancelled"


# -- on an engine whose steps take little or no time -------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("leaving", ["reset", "close", None])
def test_what_waits_for_a_reader_is_bounded_and_its_end_is_noticed_while_the_engine_sleeps(leaving: str | None) -> None:
    model = Model(n_ctx_train=N_CONTEXT)
    world = World(model=model, n_ctx=N_CONTEXT, alias=ALIAS, client_timeout=0.0, reader_stall=0.0)
    # A step takes a moment, as real ones do: a late event loop does not find the whole answer computed.
    world.metrics.on_step_done = lambda _: time.sleep(0.003)
    with serving(world) as port, RawClient(port, receive_buffer=SMALL) as client:
        request_id = client.post(COMPLETIONS, prompt="hello", stream=True, max_tokens=N_FAKE, ignore_eos=True)
        request = until(lambda: world.engine.registry.find(request_id), bool)
        assert isinstance(request, Request)
        until(lambda: request.paused, bool)
        # The event loop may be late by some hundred tokens.
        assert sum(len(choice.generated) for choice in request.choices) < N_FAKE / 2
        if leaving is None:
            world.engine.cancel(request)
        else:
            client.leave(leaving)
        reason = CancelReason.DISCONNECT if leaving else CancelReason.EXPLICIT
        assert request.ended.result(TEST_LIMIT).cancel_reason is reason


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
