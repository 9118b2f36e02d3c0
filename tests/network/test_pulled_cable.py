"""A client whose cable is pulled says nothing any more, and its request ends all the same: in every phase."""

import time
from collections.abc import Callable

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import Ending, RequestStatus
from pyllmcancel.requests.request import Request
from tests.support.http_process import RawClient, until
from tests.support.http_serving import serving
from tests.support.http_world import World
from tests.support.marks import mostly_long
from tests.support.network import SERVER, Network, inside
from tests.support.step_gate import TEST_LIMIT

CLIENT_TIMEOUT = 2.0
# What is promised is one second; a busy machine may not come to it at once.
IN_TIME = CLIENT_TIMEOUT + 1.0 + 20.0


def connected(network: Network, port: int, **options: int) -> RawClient:
    with inside(network.client):
        return RawClient(port, host=SERVER, **options)


def found(world: World, request_id: str) -> Request:
    return until(lambda: world.engine.registry.find(request_id), bool)


def in_queue(world: World, _request: Request) -> None:
    """The neighbour has the only slot."""
    world.gate.wait_held()


def in_prefill(world: World, _request: Request) -> None:
    world.gate.wait_held()


def in_decode(world: World, request: Request) -> None:
    for _ in range(3):
        world.gate.wait_held()
        world.gate.let_through()
    until(lambda: request.status, lambda status: status is RequestStatus.DECODE)
    world.gate.wait_held()


Phase = Callable[[World, Request], None]
PHASES: dict[Phase, RequestStatus] = {
    in_queue: RequestStatus.WAITING,
    in_prefill: RequestStatus.PREFILL,
    in_decode: RequestStatus.DECODE,
}


def ending_after_pull(network: Network, request: Request) -> tuple[Ending, float]:
    """How the request ended, and how many seconds after its client's cable was pulled."""
    network.pull()
    pulled_at = time.monotonic()
    ending = request.ended.result(TEST_LIMIT)
    return ending, request.cancellation.requested_at - pulled_at


@pytest.mark.parametrize("stream", mostly_long([False, True], True), ids=["whole", "stream"])
@pytest.mark.parametrize("phase", mostly_long(PHASES, in_decode), ids=lambda phase: phase.__name__)
def test_it_is_noticed_in_time(network: Network, phase: Phase, *, stream: bool) -> None:
    world = World(parallel=1, client_timeout=CLIENT_TIMEOUT)
    world.hold()
    with serving(world, SERVER) as port, RawClient(port, host=SERVER) as neighbour:
        if phase is in_queue:
            found(world, neighbour.post(prompt="neighbour", max_tokens=50, ignore_eos=True))
            world.gate.wait_held()
        with connected(network, port) as client:
            mine = found(world, client.post(prompt="hello", stream=stream, max_tokens=50, ignore_eos=True))
            phase(world, mine)
            ending, seconds = ending_after_pull(network, mine)
            assert (ending.cancel_reason, ending.phase) == (CancelReason.DISCONNECT, PHASES[phase])
            assert seconds < IN_TIME


def held_stream(world: World, client: RawClient) -> Request:
    """A stream that waits for its first step, and would go on for long."""
    mine = found(world, client.post(prompt="hello", stream=True, max_tokens=900, ignore_eos=True))
    world.gate.wait_held()
    return mine


@pytest.mark.long
def test_tokens_that_nobody_acknowledges_do_not_put_it_off(network: Network) -> None:
    world = World(client_timeout=CLIENT_TIMEOUT)
    world.hold()
    with serving(world, SERVER) as port, connected(network, port) as client:
        mine = held_stream(world, client)
        network.pull()
        pulled_at = time.monotonic()
        for _ in range(3):
            world.gate.wait_held()
            world.gate.let_through()
        ending = mine.ended.result(TEST_LIMIT)
        assert (ending.cancel_reason, ending.phase) == (CancelReason.DISCONNECT, RequestStatus.DECODE)
        assert mine.cancellation.requested_at - pulled_at < IN_TIME


@pytest.mark.long
def test_a_ping_just_before_its_time_does_not_put_it_off(network: Network) -> None:
    """The kernel would begin to count anew when that is sent a second time."""
    silence = 20.0
    world = World(client_timeout=silence, sse_ping_interval=silence - 0.5)
    world.hold()
    with serving(world, SERVER) as port, connected(network, port) as client:
        mine = held_stream(world, client)
        ending, seconds = ending_after_pull(network, mine)
        assert ending.cancel_reason is CancelReason.DISCONNECT
        assert seconds < silence + 15.0  # and not 2 * silence - 0.5


@pytest.mark.long
def test_a_client_that_is_back_in_time_keeps_its_request_and_may_then_be_idle(network: Network) -> None:
    world = World(client_timeout=4.0)
    world.hold()
    with serving(world, SERVER) as port, connected(network, port) as client:
        mine = held_stream(world, client)
        network.pull()
        until(lambda: mine.summary().seconds, lambda age: age > 1.0)
        network.plug_in()
        until(lambda: mine.summary().seconds, lambda age: age > 7.0)
        world.gate.open()
        assert b"[DONE]" in client.answer().read()
        assert mine.ended.result(TEST_LIMIT).cancel_reason is None
