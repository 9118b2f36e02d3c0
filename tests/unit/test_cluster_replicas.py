"""The checks before a balancer is set up, and their errors."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pyllmcancel.cluster.places import Replica
from pyllmcancel.cluster.replicas import look_at_all
from pyllmcancel.errors import UsageError

MODEL = {"id": "m", "meta": {"n_params": 10, "size": 20, "n_ctx": 30}}
ANSWERS: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/v1/models": {"data": [MODEL]},
    "/props": {"build_info": "pyllmcancel-1.0", "total_slots": 3},
}
Serve = Callable[..., Replica]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Have a server that answers like a replica, but for what is given."""
    with ExitStack() as servers:

        def make(name: str, *, key: str | None = None, status: int = 200, **changed: Any) -> Replica:
            answers = ANSWERS | {f"/{path.replace('_', '/')}": answer for path, answer in changed.items()}
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler(answers, key, status))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            servers.callback(thread.join)
            servers.callback(server.server_close)
            servers.callback(server.shutdown)
            return Replica(name, f"127.0.0.1:{server.server_port}")

        yield make


def handler(answers: Mapping[str, Any], key: str | None, status: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wrong = key is not None and self.headers["Authorization"] != f"Bearer {key}" and self.path != "/health"
            body = json.dumps({} if wrong else answers[self.path]).encode()
            self.send_response(401 if wrong else status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def test_replicas_that_are_alike_will_do(serve: Serve) -> None:
    first, second = look_at_all([serve("a"), serve("b")], None)
    assert first == second
    assert (first.version, first.model, first.slots, first.asks_for_keys) == ("1.0", "m", 3, False)


def test_that_they_ask_for_keys_is_found_out(serve: Serve) -> None:
    (facts,) = look_at_all([serve("a", key="secret")], "secret")
    assert facts.asks_for_keys
    with pytest.raises(UsageError, match=r"a .* asks for an API key"):
        look_at_all([serve("a", key="secret")], None)
    with pytest.raises(UsageError, match=r"a .* refuses the API key"):
        look_at_all([serve("a", key="secret")], "other")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"props": {"build_info": "pyllmcancel-2.0", "total_slots": 3}}, "b is pyllmcancel 2.0, and a 1.0"),
        ({"v1_models": {"data": [MODEL | {"id": "n"}]}}, "b serves the model n, and a m"),
        (
            {"v1_models": {"data": [MODEL | {"meta": MODEL["meta"] | {"size": 21}}]}},
            "b serves a model of 10 .* 21 bytes",
        ),  # type: ignore[operator]
        ({"v1_models": {"data": [MODEL | {"meta": MODEL["meta"] | {"n_ctx": 31}}]}}, "b has a context of 31, and a 30"),  # type: ignore[operator]
        ({"key": "k"}, "b asks for API keys: yes, and a no"),
    ],
)
def test_one_that_differs_is_told_with_what_differs(serve: Serve, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        look_at_all([serve("a"), serve("b", **changed)], "k")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"status": 503, "health": {"status": "loading"}}, "cannot serve now: it is loading"),
        ({"status": 404}, "/health answered 404"),
        ({"props": {"build_info": "b1-llama"}}, "is not a server of pyllmcancel"),
        ({"props": []}, "is not a server of pyllmcancel"),
        ({"v1_models": {"data": []}}, "does not report its model"),
        ({"v1_models": {"data": [{"id": "m", "meta": None}]}}, "does not report its model"),
    ],
)
def test_one_that_is_no_replica_is_told(serve: Serve, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=rf"b \(127.0.0.1:\d+\) .*{told}"):
        look_at_all([serve("a"), serve("b", **changed)], None)


def test_all_that_are_not_there_are_told_at_once() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        gone = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(UsageError, match=r"a .* does not answer: connection refused; b .* refused"):
            look_at_all([Replica("a", gone), Replica("b", gone)], None)
