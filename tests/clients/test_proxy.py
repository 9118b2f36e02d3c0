"""The proxy between a client and the server: what passes, what is kept, and that it does not hide a leaving."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.clients.proxy import RecordingProxy
from tests.clients.steering import LONG_PROMPT
from tests.support.http_process import CHAT, ServerProcess

LONG = {"messages": [{"role": "user", "content": LONG_PROMPT}], "stream": True}


@pytest.fixture
def proxy(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[RecordingProxy]:
    # The name is in the ids of its requests, and the server remembers.
    with RecordingProxy(server.port, request.node.name) as running:
        yield running


def test_an_answer_passes_and_is_counted(proxy: RecordingProxy) -> None:
    answer = httpx.post(f"{proxy.url}{CHAT}", json=LONG | {"max_tokens": 4}, timeout=60)
    (exchange,) = proxy.exchanges
    assert answer.text.count("data: ") == exchange.n_events > 4
    assert (exchange.status, exchange.body) == (200, LONG | {"max_tokens": 4})


def test_a_request_without_a_body_passes(proxy: RecordingProxy) -> None:
    assert httpx.get(f"{proxy.url}/health", timeout=60).status_code == 200
    assert proxy.exchanges[0].body is None


def test_the_id_is_the_proxy_s_unless_the_client_has_one(proxy: RecordingProxy) -> None:
    body = LONG | {"max_tokens": 1}
    ids = [
        httpx.post(f"{proxy.url}{CHAT}", json=body, headers=headers, timeout=60).headers["X-Request-Id"]
        for headers in ({}, {"X-Request-Id": "its-own"})
    ]
    assert ids == [exchange.id for exchange in proxy.exchanges]
    assert ids[1] == "its-own"


def test_a_client_that_leaves_leaves_the_server(proxy: RecordingProxy, server: ServerProcess) -> None:
    with httpx.stream("POST", f"{proxy.url}{CHAT}", json=LONG, timeout=60) as answer:
        next(answer.iter_raw())
    assert server.wait_for(proxy.exchanges[0].id, status="cancelled")["cancel_reason"] == "disconnect"
