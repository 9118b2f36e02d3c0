"""Clients that bring half a request, or none, and come in numbers: no other client and no log line shows it."""

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path

import pytest

from tests.http.conftest import CONTEXT
from tests.support.http_process import RawClient, ServerProcess, until
from tests.support.marks import mostly_long

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


SIZE = ("--ctx-size", "4096")


@pytest.fixture(scope="module")
def impatient(long_model: Path) -> Iterator[ServerProcess]:
    """A server with short time limits for heads and bodies, within which a client on a busy machine begins to send."""
    times = ("--header-timeout", "3", "--body-timeout", "3", "--keep-alive", "3", "--ctx-size", str(CONTEXT))
    with ServerProcess("--model", str(long_model), *times) as process:
        yield process.started()


def error_of(answer: HTTPResponse) -> tuple[int, str]:
    return answer.status, json.loads(answer.read())["error"]["code"]


def assert_served(server: ServerProcess) -> None:
    with RawClient(server.port) as other:
        other.socket.sendall(HEALTH)
        assert other.answer().status == 200


@pytest.mark.parametrize(
    "sent", mostly_long([HEAD, HEAD + b"\r\n", HEAD + b"\r\n{"], HEAD), ids=["head", "no body", "half a body"]
)
def test_half_a_request_is_waited_for_no_longer_than_its_time(impatient: ServerProcess, sent: bytes) -> None:
    with RawClient(impatient.port) as client:
        client.socket.sendall(sent)
        assert error_of(client.answer()) == (408, "request_timeout")
        assert client.is_closed_by_server()


def test_a_connection_that_brings_nothing_is_closed(impatient: ServerProcess) -> None:
    with RawClient(impatient.port) as client:
        assert client.socket.recv(1) == b""


@pytest.mark.long
@pytest.mark.parametrize("more", [b"", b"GET /hea"], ids=["nothing", "half a head"])
def test_a_served_connection_is_closed_when_no_next_request_comes(impatient: ServerProcess, more: bytes) -> None:
    with RawClient(impatient.port) as client:
        client.socket.sendall(HEALTH)
        answer = client.answer()
        answer.read()
        client.socket.sendall(more)
        assert answer.status == 200
        assert client.is_closed_by_server()


@pytest.mark.long
def test_an_answer_may_take_longer_than_any_of_these_times(impatient: ServerProcess) -> None:
    with RawClient(impatient.port) as client:
        request_id = client.post(prompt="x", stream=True)
        impatient.wait_for(request_id, completion_tokens=lambda n: n > 0)
        began = impatient.request(request_id)["seconds"]
        until(lambda: impatient.request(request_id)["seconds"], lambda age: age > began + 4.0)
        assert client.answer().status == 200
        assert impatient.request(request_id)["status"] == "running"
    impatient.wait_for(request_id, status="cancelled")


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "status"), [("GET /health", 200), ("GET /metrics", 200), ("GET /", 200), ("POST /", 405)]
)
def test_public_paths_answer_before_a_body_comes(server: ServerProcess, line: str, status: int) -> None:
    with RawClient(server.port) as client:
        head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        client.socket.sendall(head.encode() + b"x")
        answer = client.answer()
        assert answer.status == status
        answer.read()
        assert client.is_closed_by_server()


@pytest.fixture(scope="module")
def crowded(long_model: Path) -> Iterator[ServerProcess]:
    options = ("--max-connections", "3", "--max-connections-per-address", "3", "--ctx-size", str(CONTEXT))
    with ServerProcess("--model", str(long_model), *options) as process:
        yield process.started()


@pytest.mark.long
def test_of_too_many_connections_the_one_that_brings_least_is_closed_and_all_are_served(crowded: ServerProcess) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(RawClient(crowded.port)) for _ in range(20)]
        for client in slow:
            client.socket.sendall(HEAD)
            assert_served(crowded)
        assert slow[0].is_closed_by_server()


@pytest.mark.long
def test_whose_answer_is_under_way_keeps_the_place(crowded: ServerProcess) -> None:
    with ExitStack() as stack:
        busy = [stack.enter_context(RawClient(crowded.port)) for _ in range(3)]
        for client in busy:
            client.post(prompt="x", stream=True)
            assert client.answer().status == 200
        with RawClient(crowded.port) as other:
            assert error_of(other.answer()) == (503, "too_many_connections")
            assert other.is_closed_by_server()
        busy.pop().socket.close()

        def served() -> int:
            with RawClient(crowded.port) as other:
                other.socket.sendall(HEALTH)
                return other.answer().status

        until(served, lambda status: status == 200)


@pytest.mark.long
def test_with_few_descriptors_a_crowd_does_not_keep_a_request_out(long_model: Path) -> None:
    with ServerProcess("--model", str(long_model), *SIZE, files=128) as server, ExitStack() as stack:
        server.started()
        for _ in range(300):
            stack.enter_context(RawClient(server.port)).socket.sendall(HEAD)
        assert_served(server)
        server.signal()
        assert server.wait() == -signal.SIGTERM
        assert "Traceback" not in server.log
        assert server.log.count("too many connections") == 1


@pytest.mark.long
def test_without_any_descriptor_left_it_waits_quietly_until_there_is_one(long_model: Path) -> None:
    with ServerProcess("--model", str(long_model), *SIZE) as server:
        server.started()
        server.http.close()
        n_open = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (n_open + 4, hard))
        with ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(RawClient(server.port)).socket.sendall(HEAD)
            server.wait_for_log("no connection can be accepted")
        assert_served(server)
        assert "Traceback" not in server.log


@pytest.mark.long
def test_half_a_body_does_not_hold_up_the_end(long_model: Path) -> None:
    with ServerProcess("--model", str(long_model), *SIZE, "--drain", "1000") as server:
        server.started()
        with RawClient(server.port) as client:
            client.socket.sendall(HEAD + b"\r\n{")
            assert_served(server)  # by a connection that is accepted later: the half has been read
            server.signal()
            assert error_of(client.answer()) == (503, "shutdown")
            assert server.wait() == -signal.SIGTERM


@pytest.mark.long
def test_a_body_of_many_small_chunks_is_read(server: ServerProcess) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": 1}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body[:1] + b" " * 50_000 + body[1:])
    head = HEAD.replace(b"Content-Length: 1000", b"Transfer-Encoding: chunked")
    with RawClient(server.port) as client:
        client.socket.sendall(head + b"\r\n" + chunks + b"0\r\n\r\n")
        assert client.answer().status == 200
