"""Clients that leave in every way that a socket can, from a real server: each ends its own request, and only that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_process import (
    SOON,
    WAYS_TO_LEAVE,
    RawClient,
    ServerProcess,
    assert_ends_soon,
    events,
    fresh_id,
    long_prompt,
    post_bytes,
)

ways = pytest.mark.parametrize("way", WAYS_TO_LEAVE)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@ways
@streaming
def test_leaving_in_the_queue(server: ServerProcess, way: str, stream: bool) -> None:
    with RawClient(server.port) as other, RawClient(server.port) as client:
        neighbour = other.post(n=2, stream=True)  # takes both slots
        server.wait_for(neighbour, phase="decode")
        mine = client.post(stream=stream)
        server.wait_for(mine, status="waiting")
        left_at = client.leave(way)
        assert_ends_soon(server, mine, left_at, "waiting")
        assert server.request(neighbour)["status"] == "running"


@ways
@streaming
def test_leaving_in_prefill(server: ServerProcess, way: str, stream: bool) -> None:
    with RawClient(server.port) as client:
        mine = client.post(prompt=long_prompt(), stream=stream)
        server.wait_for(mine, prompt_tokens_done=lambda n: n > 0)
        left_at = client.leave(way)
        assert_ends_soon(server, mine, left_at, "prefill")


@ways
@streaming
def test_leaving_in_decode(server: ServerProcess, way: str, stream: bool) -> None:
    with RawClient(server.port) as client:
        mine = client.post(stream=stream)
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        left_at = client.leave(way)
        assert_ends_soon(server, mine, left_at, "decode")


def test_leaving_at_once(server: ServerProcess) -> None:
    """By a FIN: it comes after the request. A RST may make the server's kernel forget that there was one."""
    with RawClient(server.port) as client:
        mine = client.post()
        left_at = client.leave("close")
    seen = server.wait_for(mine, status="cancelled")
    assert seen["cancel_reason"] == "disconnect"
    assert seen["created"] + seen["seconds"] - left_at < SOON


def test_leaving_in_prefill_while_a_neighbour_streams(server: ServerProcess) -> None:
    with RawClient(server.port) as other, RawClient(server.port) as client:
        neighbour = other.post(stream=True)
        server.wait_for(neighbour, phase="decode")
        mine = client.post(prompt=long_prompt())
        server.wait_for(mine, prompt_tokens_done=lambda n: n > 0)
        left_at = client.leave("close")
        assert_ends_soon(server, mine, left_at, "prefill")
        before = server.request(neighbour)["completion_tokens"]
        server.wait_for(neighbour, status="running", completion_tokens=lambda n: n > before)


def test_leaving_before_the_body_is_complete(server: ServerProcess) -> None:
    mine = fresh_id()
    with RawClient(server.port) as client:
        client.socket.sendall(post_bytes(mine)[:-10])
    server.wait_for_log(f'{mine} "POST /v1/completions"')
    seen = server.request(mine)
    assert (seen["status"], seen["phase"], seen["cancel_reason"]) == ("cancelled", "preparing", "disconnect")


def test_a_half_closed_connection_is_closed_by_the_server(server: ServerProcess) -> None:
    """Half a connection is a client that has left: there is no telling them apart before something is sent."""
    with RawClient(server.port) as client:
        mine = client.post(prompt=long_prompt())
        server.wait_for(mine, phase="prefill")
        client.leave("half-close")
        assert client.is_closed_by_server()


# -- clients that do not read ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wordy_server(long_model: Path) -> Iterator[ServerProcess]:
    """A server whose every event is long, because each holds the model's name: buffers are full in no time."""
    with ServerProcess("--model", str(long_model), "--ctx-size", "32768", "--alias", "x" * 30_000) as process:
        yield process.started()


@pytest.mark.parametrize("way", ["reset", "close"])
def test_a_client_that_never_reads_and_then_leaves(wordy_server: ServerProcess, way: str) -> None:
    with RawClient(wordy_server.port, receive_buffer=4096) as client:
        mine = blocked_stream(wordy_server, client)
        left_at = client.leave(way)
        assert_ends_soon(wordy_server, mine, left_at, "decode")


def test_a_client_that_does_not_read_can_be_cancelled_and_learns_of_it_when_it_does(
    wordy_server: ServerProcess,
) -> None:
    with RawClient(wordy_server.port, receive_buffer=4096) as client:
        mine = blocked_stream(wordy_server, client)
        assert wordy_server.cancel(mine)["outcome"] == "cancelled"
        told = events(client.answer())
        assert '"code": "explicit"' in told[-1]
        assert "[DONE]" not in told


def blocked_stream(server: ServerProcess, client: RawClient) -> str:
    """A stream of long events, all of whose buffers are full: so it has paused."""
    mine = client.post(stream=True)
    server.wait_for(mine, status="running", paused=True)
    return mine


# -- connections that are kept -----------------------------------------------------------------------------------------


def test_a_connection_is_kept_for_the_next_request(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        ended = []
        for _ in range(2):
            ended.append(client.post(max_tokens=3, stream=True))
            assert events(client.answer())[-1] == "[DONE]"
        mine = client.post()
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        left_at = client.leave("close")
        assert_ends_soon(server, mine, left_at, "decode")
    for request_id in ended:
        assert server.request(request_id)["status"] == "finished"


def test_a_cancelled_requests_connection_serves_the_next(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = client.post(stream=True)
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        assert server.cancel(mine)["outcome"] == "cancelled"
        assert '"code": "explicit"' in events(client.answer())[-1]
        client.post(max_tokens=3)
        assert client.answer().status == 200


def test_a_client_that_wants_its_connection_closed_gets_that(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(post_bytes(fresh_id(), max_tokens=1).replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        answer = client.answer()
        assert (answer.status, answer.getheader("connection")) == (200, "close")
        answer.read()
        assert client.is_closed_by_server()
