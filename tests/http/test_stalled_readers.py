"""Clients that stop reading without closing: generation pauses, and after a while they are cancelled as stalled."""

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.request import Request
from tests.http.conftest import CONTEXT
from tests.support.fake_model import Model
from tests.support.http_process import COMPLETIONS, RawClient, ServerProcess, until
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


def read_one_byte(client: RawClient, **fields: Any) -> str:
    """Ask for a stream, and stop reading at its first byte."""
    request_id = client.post(COMPLETIONS, stream=True, max_tokens=N_TOKENS, ignore_eos=True, **fields)
    assert client.socket.recv(1)
    return request_id


def test_one_that_stops_at_the_first_byte_is_cancelled_as_stalled(strict: ServerProcess) -> None:
    with RawClient(strict.port, receive_buffer=SMALL) as client:
        request_id = read_one_byte(client)
        seen = strict.wait_for(request_id, status="cancelled")
        assert (seen["cancel_reason"], seen["phase"], seen["finish_reason"]) == ("stalled", "decode", "cancelled")
        assert b"[DONE]" not in everything(client), "it must not look complete"
    assert seen["completion_tokens"] < N_TOKENS / 10, "it was not computed for meanwhile"
    strict.wait_for_log(rf"request {request_id} cancelled \(stalled\) in decode")
    strict.wait_for_log("does not read: its connection is closed")
    assert "Traceback" not in strict.log
    metrics = strict.http.get("/metrics").text
    assert 'pyllmcancel_requests_cancelled_total{reason="stalled"}' in metrics


def everything(client: RawClient) -> bytes:
    received = b""
    try:
        while piece := client.socket.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.mark.long
def test_its_slot_is_anothers_while_it_is_paused(long_model: Path) -> None:
    options = ("--model", str(long_model), "--ctx-size", str(CONTEXT), "--parallel", "1", "--reader-stall", "0")
    with ServerProcess(*options) as server, RawClient(server.started().port, receive_buffer=SMALL) as client:
        request_id = read_one_byte(client)
        paused = server.wait_for(request_id, paused=True, slots=[])
        assert (paused["status"], paused["phase"], paused["slots"]) == ("running", "decode", [])
        gauge = re.search(r"^pyllmcancel_requests_paused (\S+)$", server.http.get("/metrics").text, re.MULTILINE)
        assert gauge is not None
        assert float(gauge[1]) == 1.0
        assert server.http.post(COMPLETIONS, json={"prompt": "another", "max_tokens": 3}).status_code == 200
        assert server.request(request_id)["completion_tokens"] == paused["completion_tokens"]
        assert server.cancel(request_id)["outcome"] == "cancelled"


# -- on an engine whose steps take little or no time -------------------------------------------------------------------


def asked(world: World, client: RawClient, n_tokens: int) -> Request:
    request_id = client.post(COMPLETIONS, prompt="hello", stream=True, max_tokens=n_tokens, ignore_eos=True)
    request = until(lambda: world.engine.registry.find(request_id), bool)
    assert isinstance(request, Request)
    return request


def slow_world(**options: float) -> World:
    """A world of long events, whose steps take a moment, as real ones do: a late event loop does not find the whole
    answer computed.
    """
    model = Model(n_ctx_train=N_CONTEXT)
    world = World(model=model, n_ctx=N_CONTEXT, alias=ALIAS, **{"client_timeout": 0.0, "reader_stall": 0.0} | options)
    world.metrics.on_step_done = lambda _: time.sleep(0.003)
    return world


def n_generated(request: Request) -> int:
    return sum(len(choice.generated) for choice in request.choices)  # none of a request that is not accepted yet


def at_rest(request: Request) -> tuple[int, float]:
    """Wait until the kernels take no more of the answer: how many tokens it has, and the request's age in seconds.

    Before, a request can be paused because the event loop is late, and go on.
    """
    n_tokens, since = -1, 0.0

    def rests() -> bool:
        nonlocal n_tokens, since
        now, age = n_generated(request), request.summary().seconds
        if now != n_tokens or not request.paused:
            n_tokens, since = now, age
        return age > since + 5.0

    until(rests, bool)
    return n_tokens, since


@pytest.mark.long
def test_a_reader_that_rests_for_longer_than_a_client_may_be_silent_gets_its_whole_answer() -> None:
    """The client's kernel answers each probe of its closed window, but those become rare."""
    world = slow_world(client_timeout=2.0)
    with serving(world) as port, RawClient(port, receive_buffer=SMALL) as client:
        request = asked(world, client, N_FAKE)
        n_tokens, rests_at = at_rest(request)
        until(lambda: request.summary().seconds, lambda age: age > rests_at + 8.0)
        assert n_generated(request) == n_tokens, "it was computed for while it was paused"
        events = client.answer().read().decode().split("\n\n")
    assert request.ended.result(TEST_LIMIT).finish_reason is FinishReason.LENGTH
    assert events[-2] == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts)
    assert request.usage().completion_tokens == N_FAKE


@pytest.mark.long
def test_what_waits_for_a_reader_is_bounded() -> None:
    world = slow_world()
    with serving(world) as port, RawClient(port, receive_buffer=SMALL) as client:
        request = asked(world, client, N_FAKE)
        until(lambda: request.paused, bool)
        # The event loop may be late by some hundred tokens.
        assert n_generated(request) < N_FAKE / 2
        world.engine.cancel(request)
        assert request.ended.result(TEST_LIMIT).cancel_reason is CancelReason.EXPLICIT


@pytest.mark.long
@pytest.mark.parametrize("leaving", ["reset", "close"])
def test_a_paused_client_that_leaves_is_noticed_while_the_engine_sleeps(leaving: str) -> None:
    world = slow_world()
    with serving(world) as port, RawClient(port, receive_buffer=SMALL) as client:
        request = asked(world, client, N_FAKE)
        until(lambda: request.paused, bool)
        client.leave(leaving)
        assert request.ended.result(TEST_LIMIT).cancel_reason is CancelReason.DISCONNECT
