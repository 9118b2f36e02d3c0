"""A real server's sockets: heads of every kind, requests in a row, and clients that leave in every way."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.server.http import protocol
from tests.support.http_process import (
    COMPLETIONS,
    WAYS_TO_LEAVE,
    RawClient,
    ServerProcess,
    assert_ends_soon,
    events,
    fresh_id,
    long_prompt,
    post_bytes,
)
from tests.support.http_serving import serving
from tests.support.http_world import World

ways = pytest.mark.parametrize("way", WAYS_TO_LEAVE)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


# Of a request that follows on the connection, before the answer to the first.
following = pytest.mark.parametrize("following", ["none", "later", "in-one-piece"])


@ways
@streaming
@following
def test_leaving_in_the_queue(server: ServerProcess, following: str, way: str, stream: bool) -> None:
    mine, behind = fresh_id(), fresh_id()
    pieces = [post_bytes(mine, stream=stream), *([] if following == "none" else [post_bytes(behind)])]
    with RawClient(server.port) as other, RawClient(server.port) as client:
        neighbour = other.post(n=2, stream=True)  # takes both slots
        server.wait_for(neighbour, phase="decode")
        client.socket.sendall(b"".join(pieces) if following == "in-one-piece" else pieces[0])
        server.wait_for(mine, status="waiting")
        if following == "later":
            client.socket.sendall(pieces[1])
        assert_ends_soon(server, mine, client.leave(way), "waiting")
        assert server.request(neighbour)["status"] == "running"
        assert server.request(behind)["status"] == "unknown"


def computing(server: ServerProcess, client: RawClient, phase: str, **fields: Any) -> str:
    """A request that is being computed, in this phase; its id."""
    mine = client.post(**{"prompt": long_prompt() if phase == "prefill" else "hello"} | fields)
    done = "prompt_tokens_done" if phase == "prefill" else "completion_tokens"
    server.wait_for(mine, **{done: lambda n: n > 0})
    return mine


@ways
@streaming
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_leaving_while_it_is_computed(server: ServerProcess, phase: str, way: str, stream: bool) -> None:
    with RawClient(server.port) as client:
        mine = computing(server, client, phase, stream=stream)
        if way == "close":
            client.post()  # it is read ahead
        assert_ends_soon(server, mine, client.leave(way), phase)


def test_leaving_at_once(server: ServerProcess) -> None:
    """By a FIN: it comes after the request. A RST may make the server's kernel forget that there was one."""
    with RawClient(server.port) as client:
        mine = client.post()
        left_at = client.leave("close")
    assert_ends_soon(server, mine, left_at, server.wait_for(mine, status="cancelled")["phase"])


def test_leaving_in_prefill_while_a_neighbour_streams(server: ServerProcess) -> None:
    with RawClient(server.port) as other, RawClient(server.port) as client:
        neighbour = other.post(stream=True, max_tokens=1_000)
        server.wait_for(neighbour, phase="decode")
        mine = computing(server, client, "prefill")
        assert_ends_soon(server, mine, client.leave("close"), "prefill")
        assert events(other.answer())[-1] == "[DONE]"


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
        server.wait_for(client.post(prompt=long_prompt()), phase="prefill")
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
        assert_ends_soon(wordy_server, mine, client.leave(way), "decode")


def test_a_client_that_does_not_read_is_cancelled_and_learns_of_it_when_it_does(wordy_server: ServerProcess) -> None:
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
        mine = computing(server, client, "decode")
        assert_ends_soon(server, mine, client.leave("close"), "decode")
    for request_id in ended:
        assert server.request(request_id)["status"] == "finished"


def test_a_cancelled_requests_connection_serves_the_next(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = computing(server, client, "decode", stream=True)
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


# -- heads as proxies and smugglers send them --------------------------------------------------------------------------


JSON = "Content-Type: application/json"


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def test_one_name_counts_and_that_of_an_absolute_target_first(server: ServerProcess) -> None:
    for head, status in (
        (f"http://localhost:{server.port}/health HTTP/1.1\r\nHost: evil.example", 200),
        ("http://127.0.0.1/v1/models HTTP/1.1\r\nHost: 127.0.0.1", 200),
        (f"http://evil.example:{server.port}/v1/models HTTP/1.1\r\nHost: 127.0.0.1:{server.port}", 421),
        (f"http://localhost@evil.example:{server.port}/ HTTP/1.1\r\nHost: 127.0.0.1", 421),
        ("/v1/models HTTP/1.1\r\nHost: evil.example", 421),
        ("/v1/models HTTP/1.0", 200),
        ("/v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
    ):
        with RawClient(server.port) as client:
            client.socket.sendall(f"GET {head}\r\n\r\n".encode())
            assert (head, client.answer().status) == (head, status)


def test_a_body_with_two_lengths_is_answered_and_what_follows_is_not(server: ServerProcess) -> None:
    first, smuggled = fresh_id(), fresh_id()
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nX-Request-Id: "
    both = "Content-Length: 4\r\nTransfer-Encoding: chunked"
    with RawClient(server.port) as client:
        following = f"{head}{smuggled}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        client.socket.sendall(f"{head}{first}\r\n{both}\r\n\r\n".encode() + chunked(body) + following)
        answer = client.answer()
        assert (answer.status, answer.headers["connection"], answer.headers["x-request-id"]) == (200, "close", first)
        answer.read()
        assert client.is_closed_by_server()
    assert server.request(smuggled)["status"] == "unknown"


# -- a next request before the answer to the current one ---------------------------------------------------------------


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


def test_a_long_request_that_was_read_ahead_is_served(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = computing(server, client, "prefill")
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


# -- streams that are taken up again -----------------------------------------------------------------------------------


LONG = {"stream": True, "max_tokens": 30_000, "temperature": 0, "ignore_eos": True, "keep_going": True}


def pieces(server: ServerProcess, name: str) -> Iterator[bytes]:
    with server.http.stream("GET", f"/v1/stream/{name}") as answer:
        assert answer.status_code == 200
        yield from answer.iter_raw()


@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_an_answer_goes_on_whichever_way_its_client_leaves(server: ServerProcess, phase: str, way: str) -> None:
    with RawClient(server.port) as client:
        mine = computing(server, client, phase, **LONG | {"max_tokens": 200})
        client.leave(way)
    kept = b"".join(pieces(server, mine))
    assert kept.endswith(b"data: [DONE]\n\n")
    assert server.wait_for(mine, status="finished", readers=0)["completion_tokens"] == 200
    assert b"".join(pieces(server, mine)) == kept
