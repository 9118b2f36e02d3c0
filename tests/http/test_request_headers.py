"""Heads as proxies and smugglers send them, over a socket."""

from __future__ import annotations

import json

from tests.support.http_process import COMPLETIONS, RawClient, ServerProcess, fresh_id

JSON = "Content-Type: application/json"


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def test_an_absolute_target_is_served_and_its_name_counts(server: ServerProcess) -> None:
    for target, host, status in (
        (f"http://localhost:{server.port}/health", "evil.example", 200),
        ("http://127.0.0.1/v1/models", "127.0.0.1", 200),
        (f"http://evil.example:{server.port}/v1/models", f"127.0.0.1:{server.port}", 421),
        (f"http://localhost@evil.example:{server.port}/", "127.0.0.1", 421),
        ("/v1/models", "evil.example", 421),
    ):
        with RawClient(server.port) as client:
            client.socket.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (target, client.answer().status) == (target, status)


def test_a_request_of_http_1_0_needs_no_name(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert client.answer().status == 200


def test_several_names_are_no_http(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert client.answer().status == 400


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
