"""Heads of requests that a client may send, and few do."""

from __future__ import annotations

import h11
import pytest

from pyllmcancel.server.http.heads import PlainConnection

CLOSE = (b"connection", b"close")


def read(head: str) -> h11.Request:
    connection = PlainConnection(h11.SERVER)
    connection.receive_data(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    event = connection.next_event()
    assert isinstance(event, h11.Request)
    return event


@pytest.mark.parametrize(
    ("target", "seen", "host"),
    [
        ("http://localhost:8000/health", b"/health", b"localhost:8000"),
        ("HTTPS://Evil.example/v1/requests?status=x", b"/v1/requests?status=x", b"Evil.example"),
        ("http://localhost", b"/", b"localhost"),
        ("http://localhost?a=b", b"/?a=b", b"localhost"),
        ("http://[::1]:8000/a%2Fb", b"/a%2Fb", b"[::1]:8000"),
        ("http://a@localhost/", b"/", b"a@localhost"),
        ("http://localhost/http://x/", b"/http://x/", b"localhost"),
        ("http:///health", b"/health", b""),
        ("/http://x/", b"/http://x/", b"other"),
        ("//localhost/x", b"//localhost/x", b"other"),
        ("http:/x", b"http:/x", b"other"),
        ("localhost:8000", b"localhost:8000", b"other"),
        ("*", b"*", b"other"),
    ],
)
def test_the_name_in_an_absolute_target_counts(target: str, seen: bytes, host: bytes) -> None:
    request = read(f"GET {target} HTTP/1.1\nHost: other\nX-A: b")
    assert (request.target, request.method, request.http_version) == (seen, b"GET", b"1.1")
    assert sorted(request.headers) == [(b"host", host), (b"x-a", b"b")]


def test_an_absolute_target_needs_no_host_in_http_1_0() -> None:
    request = read("GET http://localhost/x HTTP/1.0")
    assert (request.target, list(request.headers)) == (b"/x", [(b"host", b"localhost")])


@pytest.mark.parametrize("also", ["", "\nConnection: keep-alive", "\nConnection: keep-alive, x\nconnection: y"])
def test_two_lengths_of_a_body_end_the_connection_and_one_counts(also: str) -> None:
    request = read(f"POST / HTTP/1.1\nHost: x\nContent-Length: 4\nTransfer-Encoding: chunked{also}")
    assert sorted(request.headers) == [CLOSE, (b"host", b"x"), (b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize("length", ["Content-Length: 4", "Transfer-Encoding: chunked"])
def test_one_length_is_left_alone(length: str) -> None:
    request = read(f"POST / HTTP/1.1\nHost: x\n{length}\nConnection: keep-alive")
    assert (b"connection", b"keep-alive") in list(request.headers)
