"""Clients that send their next request before the answer to the current one has come."""

from __future__ import annotations

import pytest

from pyllmcancel.server.http import protocol
from tests.support.http_process import (
    RawClient,
    ServerProcess,
    assert_ends_soon,
    fresh_id,
    long_prompt,
    post_bytes,
)
from tests.support.http_serving import serving
from tests.support.http_world import World


def test_the_answers_come_in_order(server: ServerProcess) -> None:
    first, second = fresh_id(), fresh_id()
    with RawClient(server.port) as client, client.socket.makefile("rb") as stream:
        client.socket.sendall(post_bytes(first, max_tokens=1) + post_bytes(second, max_tokens=2))
        answered = []
        for _ in range(2):
            headers = {}
            while line := stream.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            stream.read(int(headers["content-length"]))
            answered.append(headers["x-request-id"])
    assert answered == [first, second]


@pytest.mark.parametrize("together", [False, True], ids=["later", "in-one-piece"])
@pytest.mark.parametrize("way", ["reset", "close"])
def test_leaving_in_the_queue_is_noticed(server: ServerProcess, way: str, together: bool) -> None:
    mine, following = fresh_id(), fresh_id()
    with RawClient(server.port) as other, RawClient(server.port) as client:
        neighbour = other.post(n=2, stream=True)
        server.wait_for(neighbour, phase="decode")
        pieces = [post_bytes(mine), post_bytes(following)]
        client.socket.sendall(b"".join(pieces) if together else pieces[0])
        server.wait_for(mine, status="waiting")
        if not together:
            client.socket.sendall(pieces[1])
        left_at = client.leave(way)
        assert_ends_soon(server, mine, left_at, "waiting")
        assert server.request(neighbour)["status"] == "running"
        assert server.request(following)["status"] == "unknown"


def test_leaving_in_prefill_is_noticed(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = client.post(prompt=long_prompt())
        server.wait_for(mine, prompt_tokens_done=lambda n: n > 0)
        client.post()
        left_at = client.leave("close")
        assert_ends_soon(server, mine, left_at, "prefill")


def test_leaving_while_a_stream_is_not_read_is_noticed(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = client.post(stream=True)
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        client.post()
        left_at = client.leave("close")
        assert_ends_soon(server, mine, left_at, "decode")


def test_a_long_request_that_was_read_ahead_is_served(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = client.post(prompt=long_prompt())
        server.wait_for(mine, prompt_tokens_done=lambda n: n > 0)
        client.post(prompt="x" * 200_000, max_tokens=1)
        assert server.cancel(mine)["outcome"] == "cancelled"
        first = client.answer()
        assert first.status == 499
        first.read()
        second = client.answer()
        assert second.status == 400
        assert b"context" in second.read()


def test_a_next_request_whose_body_takes_its_time_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for the rest of one that was answered before its end, which is read for a moment only."""
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.0)
    first, second = fresh_id(), fresh_id()
    following = post_bytes(second, max_tokens=1)
    with serving(World()) as port, RawClient(port) as client:
        client.socket.sendall(post_bytes(first, max_tokens=1) + following[:-1])
        assert client.answer().read()
        client.socket.sendall(following[-1:])
        assert client.answer().headers["x-request-id"] == second
