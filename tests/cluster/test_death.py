"""A replica is killed under load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from http.client import IncompleteRead
from pathlib import Path

import pytest

from tests.cluster.conftest import started
from tests.support.balancer import Balancer
from tests.support.http_process import RawClient, ServerProcess, events
from tests.support.http_process import signal as signals

SHORT = {"max_tokens": 50, "ignore_eos": True}
N = 8


@pytest.fixture
def mortals(program: object, long_model: Path) -> Iterator[list[ServerProcess]]:
    """Two servers of this test's own."""
    with ExitStack() as stack:
        yield started(stack, 2, long_model)


@pytest.mark.timeout(600)
def test_others_streams_go_on_and_what_has_no_first_byte_is_answered_elsewhere(
    mortals: list[ServerProcess], tmp_path: Path
) -> None:
    with Balancer(mortals, tmp_path) as balancer, ExitStack() as clients:

        def post(headers: dict[str, str], **fields: object) -> tuple[RawClient, str]:
            client = clients.enter_context(RawClient(balancer.port))
            return client, balancer.post(client, headers=headers, **fields)

        # A stream on each that has begun.
        begun = {}
        for i in range(100):
            client, request_id = post({"X-Session-Id": f"begun {i}"}, stream=True, max_tokens=3_000, ignore_eos=True)
            answer = client.answer()
            place = balancer.running(request_id)
            if place not in begun:
                begun[place] = answer
            if len(begun) == 2:
                break
            client.leave("reset")
        # From here on nothing is computed: whatever is sent now has no first byte.
        for server in mortals:
            server.signal(signals.SIGSTOP)
        whole = [post({"X-Session-Id": f"whole {i}"}, **SHORT) for i in range(N)]
        streams = [post({"X-Session-Id": f"stream {i}"}, stream=True, **SHORT) for i in range(N)]
        keyed = [post({"X-Supersede": f"key {i}"}, **SHORT) for i in range(N)]
        places = {request_id: balancer.place_of(request_id) for _, request_id in whole + streams + keyed}
        for some in (whole, streams, keyed):
            assert {places[request_id] for _, request_id in some} == {"r1", "r2"}
        balancer.servers["r1"].signal(signals.SIGKILL)
        balancer.servers["r2"].signal(signals.SIGCONT)

        assert events(begun["r2"])[-1] == "[DONE]"
        # Cut, and so that it cannot be taken for whole.
        with pytest.raises((IncompleteRead, ConnectionResetError)):
            begun["r1"].read()
        for client, _ in whole:
            answer = client.answer()
            assert (answer.status, answer.headers["x-served-by"]) == (200, "r2")
            answer.read()
        for client, _ in streams:
            assert events(client.answer())[-1] == "[DONE]"
        for client, request_id in keyed:
            answer = client.answer()
            # A newer one may be elsewhere by now, which an older one that is sent again would supersede.
            assert answer.status == (200 if places[request_id] == "r2" else 502)
            assert answer.status == 200 or answer.headers["x-should-retry"] == "false"
            answer.read()

        # The names of the dead one are somebody's again.
        for i in range(N):
            for name in ({"X-Session-Id": f"whole {i}"}, {"X-Supersede": f"key {i}"}):
                client, _ = post(name, max_tokens=1)
                answer = client.answer()
                assert (answer.status, answer.headers["x-served-by"]) == (200, "r2")
                answer.read()


def test_when_the_balancer_dies_what_it_had_ends_as_if_its_client_had_left(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    with Balancer(servers[:2], tmp_path) as balancer, ExitStack() as stack:
        # As many as one server has slots: the balancer's threads may give one server more than its half.
        clients = [stack.enter_context(RawClient(balancer.port)) for _ in range(N)]
        ids = [balancer.post(client, stream=i % 2 == 0) for i, client in enumerate(clients)]
        places = [balancer.running(one) for one in ids]
        assert set(places) == {"r1", "r2"}
        balancer.die()
        for client, request_id, place in zip(clients, ids, places, strict=True):
            ended = balancer.servers[place].wait_for(request_id, status="cancelled")
            assert ended["cancel_reason"] == "disconnect"
            assert client.is_closed_by_server()


def test_a_stream_that_waited_when_its_replica_died_does_not_look_complete(
    mortals: list[ServerProcess], tmp_path: Path
) -> None:
    with Balancer(mortals[:1], tmp_path) as balancer, ExitStack() as clients:
        endless = {"stream": True, "max_tokens": 30_000, "ignore_eos": True}
        everyone = [clients.enter_context(RawClient(balancer.port)) for _ in range(N + 1)]
        answers = []
        for client in everyone:  # one more than there are slots
            balancer.post(client, **endless)
            answers.append(client.answer())
        assert [answer.status for answer in answers] == [200] * (N + 1)
        balancer.servers["r1"].signal(signals.SIGKILL)
        for answer in answers:
            with pytest.raises((IncompleteRead, ConnectionResetError)):
                answer.read()
