"""Two servers that are each other's peers, and nothing before them: names in bodies count on both."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.http_process import RawClient, ServerProcess, events, until
from tests.support.proxies import free_port


class Pair:
    """The servers, on ports that stay theirs."""

    def __init__(self, model: Path, stack: ExitStack) -> None:
        self._model = model
        self._stack = stack
        self.ports = [free_port(), free_port()]
        self.peers = ",".join(f"http://127.0.0.1:{port}" for port in self.ports)
        self.servers = [self.start(place) for place in range(2)]
        for server in self.servers:
            until(lambda server=server: server.http.get("/v1/requests").json(), lambda seen: "unreached" not in seen)  # type: ignore[misc]

    def start(self, place: int) -> ServerProcess:
        size = ("--ctx-size", "32768", "--parallel", "4", "--kv-unified")
        own = ("--port", str(self.ports[place]), "--replica", f"s{place}", "--peers", self.peers)
        environment = {"PYLLMCANCEL_PEER_KEY": "secret"}
        options = ("--model", str(self._model), *size, *own)
        return self._stack.enter_context(ServerProcess(*options, environment=environment)).started()


@pytest.fixture
def pair(long_model: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(long_model, stack)


def test_two_servers_act_as_one_and_one_that_comes_back_is_found_again(pair: Pair) -> None:
    with ExitStack() as stack:
        # Ten keystrokes, each at the other server, and each when the one before has been accepted.
        ids, streams = [], []
        for number in range(10):
            client = stack.enter_context(RawClient(pair.ports[number % 2]))
            ids.append(client.post(prompt="x", ignore_eos=True, stream=True, supersede="k", session_id="s"))
            streams.append(client.answer())
        for number, stream in enumerate(streams[:-1]):
            assert "superseded" in events(stream)[-1]
            assert stream.headers["x-served-by"] == f"s{number % 2}"
        first = pair.servers[0]
        listed = {one["id"]: one for one in first.http.get("/v1/requests").json()["data"]}
        assert [listed[one]["replica"] for one in ids] == ["s0", "s1"] * 5
        assert [one for one in ids if listed[one]["cancel_reason"] is None] == ids[-1:]
        session = first.http.get("/v1/sessions/s").json()
        assert (session["requests"], sorted(session["replicas"]), session["n_requests"]) == (ids[-1:], ["s0", "s1"], 10)

        assert first.cancel(ids[-1])["outcome"] == "cancelled"
        assert first.cancel("no-such-id")["error"]["code"] == "unknown_request"

        os.kill(pair.servers[1].pid, signal.SIGKILL)
        pair.servers[1].wait()
        answer = first.http.get("/v1/requests")
        assert (answer.status_code, answer.headers["x-unreached"]) == (200, "s1")
        assert answer.json()["unreached"][0]["replica"] == "s1"
        again = pair.start(1)
        until(lambda: first.http.get("/v1/requests").json(), lambda seen: "unreached" not in seen)
        client = stack.enter_context(RawClient(again.port))
        last = client.post(prompt="x", ignore_eos=True)
        again.wait_for(last, status="running")
        assert first.cancel(last)["outcome"] == "cancelled"
