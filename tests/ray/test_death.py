"""A replica is killed under load, another is taken away, and all of it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import BadStatusLine, IncompleteRead

import pytest

from tests.ray.cluster import MISSING, RayCluster, is_missing
from tests.ray.conftest import SIZE
from tests.ray.replica_requests import ask, running
from tests.support.http_process import RawClient, events, until

SHORT = {"max_tokens": 30, "ignore_eos": True}
N = 8
DRAIN = 20.0


@pytest.fixture(scope="module")
def mortal() -> Iterator[RayCluster]:
    """Two replicas of this module's own."""
    if is_missing():
        pytest.skip(MISSING)
    with RayCluster({"/": {"replicas": 2, "drain": DRAIN, **SIZE}}) as running:
        yield running.started()


def on_each(cluster: RayCluster, clients: ExitStack) -> dict[str, tuple[RawClient, str]]:
    """A stream on each replica, begun through HAProxy."""
    found: dict[str, tuple[RawClient, str]] = {}
    while len(found) < 2:
        client, request_id = ask(clients, cluster.port, stream=True)
        found.setdefault(running(cluster.replicas[0], request_id)["replica"], (client, request_id))
    return found


@pytest.mark.timeout(600)
def test_a_replica_that_is_killed_takes_nothing_of_another_with_it_and_comes_back(mortal: RayCluster) -> None:
    with ExitStack() as clients:
        streams = on_each(mortal, clients)
        dying, other = mortal.replicas
        whole = [ask(clients, mortal.port, **SHORT) for _ in range(N)]
        os.kill(dying.find_pid(), signal.SIGKILL)

        assert events(streams[other.name][0].answer())[-1] == "[DONE]"
        with pytest.raises((IncompleteRead, ConnectionResetError)):  # cut, and so that it cannot be taken for whole
            streams[dying.name][0].answer().read()
        for client, _ in whole:  # nobody hangs
            with suppress(BadStatusLine, ConnectionResetError):
                assert client.answer().status in (200, 500)
        for _ in range(N):
            with RawClient(mortal.port) as client:
                client.post(**SHORT)
                answer = client.answer()
                assert answer.status == 200
                answer.read()
    # Ray makes another one.
    until(lambda: {*mortal.places()} - {dying.name, other.name}, bool, 60)
    until(lambda: len(mortal.places()), lambda n: n == 2, 60)
    mortal.find_replicas()


@pytest.mark.timeout(600)
def test_a_replica_that_is_taken_away_ends_its_answers_and_nothing_fails(mortal: RayCluster) -> None:
    """And it is reached until then."""
    with ExitStack() as clients:
        streams = on_each(mortal, clients)
        # Ten seconds and more go by until HAProxy hears of it: the second of these is computed then.
        long = {replica.name: [ask(clients, replica.port, n=7)[1] for _ in range(2)][1] for replica in mortal.replicas}
        mortal.scale(1)
        while len(mortal.places()) != 1:  # until HAProxy has heard of it; the file may be being written
            answer = mortal.http.post("/v1/completions", json={"prompt": "def ", "max_tokens": 2})
            assert answer.status_code == 200
        (left,) = until(mortal.find_replicas, lambda found: len(found) == 1)
        (gone,) = long.keys() - {left.name}
        assert left.cancel(long[gone])["outcome"] == "cancelled"
        for client, _ in streams.values():
            assert events(client.answer())[-1] == "[DONE]"


@pytest.mark.timeout(600)
def test_what_cannot_be_is_told_and_what_runs_goes_on(mortal: RayCluster) -> None:
    told = mortal.add("/wrong", {"ctx_siz": 1})
    assert "did you mean --ctx-size?" in told
    told = mortal.add("/missing", {"model": "/no/such/file.gguf"})
    assert "there is no file /no/such/file.gguf" in told
    assert mortal.http.post("/v1/completions", json={"prompt": "def ", "max_tokens": 2}).status_code == 200


@pytest.mark.timeout(600)
def test_nothing_is_left_at_the_end(mortal: RayCluster) -> None:
    assert len(mortal.pids()) > 5
    mortal.interrupt()
    assert mortal.pids() == []
