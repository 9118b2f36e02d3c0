"""Two servers that are each other's peers, and nothing before them: names in bodies count on both."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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


def test_every_answer_says_who_gave_it(pair: Pair) -> None:
    server = pair.servers[1]
    for method, path, body in (
        ("GET", "/health", None),
        ("GET", "/v1/nothing", None),
        ("POST", "/v1/completions", {"prompt": 1.5}),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, "stream": True}),
        ("POST", "/v1/peers", {}),
    ):
        assert server.http.request(method, path, json=body).headers.get("x-served-by") == "s1", (method, path)
    with server.http.stream("GET", "/v1/events") as stream:
        assert stream.headers["x-served-by"] == "s1"
    with RawClient(server.port) as client:
        client.socket.sendall(b"NOT HTTP AT ALL\r\n\r\n")
        answer = client.answer()
        assert (answer.status, answer.headers["x-served-by"]) == (400, "s1")


def test_a_feed_of_two_servers_loses_and_finds_the_one_that_is_killed(pair: Pair) -> None:
    first, second = pair.servers
    with first.http.stream("GET", "/v1/events", timeout=60) as stream:
        seen = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: "))
        boots = [one["server"]["boot"] for one in seen_until(seen, "s1", "snapshot")]
        assert second.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        (ended,) = seen_until(seen, "s1", "ended")
        assert ended["request"]["finish_reason"] == "length"
        second.signal(signal.SIGKILL)
        second.wait()
        assert [one["state"] for one in seen_until(seen, "s1", "replica")] == ["lost"]
        pair.servers[1] = pair.start(1)
        (again,) = seen_until(seen, "s1", "snapshot")
        assert again["server"]["boot"] not in boots


def seen_until(events: Iterator[dict[str, Any]], replica: str, kind: str) -> list[dict[str, Any]]:
    """The next event of this kind that is of this replica."""
    return [next(one for one in events if (one["type"], one["replica"]) == (kind, replica))]


def cancel_from(server: ServerProcess, request_id: str) -> None:
    """Cancel a request of the other server, which may be late for once, and may have obeyed all the same."""
    told = until(lambda: server.cancel(request_id), lambda told: "outcome" in told)
    assert told["outcome"] in ("cancelled", "already_finished")


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
        # On a busy machine the other server may be late for once.
        seen = until(lambda: first.http.get("/v1/requests").json(), lambda seen: "unreached" not in seen)
        listed = {one["id"]: one for one in seen["data"]}
        assert [listed[one]["replica"] for one in ids] == ["s0", "s1"] * 5
        assert [one for one in ids if listed[one]["cancel_reason"] is None] == ids[-1:]
        session = until(lambda: first.http.get("/v1/sessions/s").json(), lambda seen: "unreached" not in seen)
        assert (session["requests"], sorted(session["replicas"]), session["n_requests"]) == (ids[-1:], ["s0", "s1"], 10)

        cancel_from(first, ids[-1])
        pair.servers[1].wait_for(ids[-1], status="cancelled")
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
        cancel_from(first, last)
