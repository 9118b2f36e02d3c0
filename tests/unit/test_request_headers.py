"""Heads of requests that a client may send, and few do."""

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from pyllmcancel.server.http.heads import PlainHeads

CLOSE = (b"connection", b"close")
LENGTH, CHUNKED = (b"content-length", b"4"), (b"transfer-encoding", b"chunked")
Headers = list[tuple[bytes, bytes]]


def seen(target: str, headers: Headers, answered: Headers | None = None) -> tuple[Scope, Headers]:
    """Return the scope that the application gets, and the headers that its answer is sent with."""
    scopes: list[Scope] = []
    sent: list[Message] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": answered or []})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    path, _, query = target.encode().partition(b"?")
    scope = {"type": "http", "path": path.decode(), "raw_path": path, "query_string": query, "headers": headers}
    asyncio.run(PlainHeads(app)(scope, receive, send))
    return scopes[0], sent[0]["headers"]


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        ("http://localhost:8000/health", "/health", b"localhost:8000"),
        ("HTTPS://Evil.example/v1/requests?status=x", "/v1/requests?status=x", b"Evil.example"),
        ("http://localhost", "/", b"localhost"),
        ("http://localhost?a=b", "/?a=b", b"localhost"),
        ("http://[::1]:8000/a%2Fb", "/a%2Fb", b"[::1]:8000"),
        ("http://a@localhost/", "/", b"a@localhost"),
        ("http://localhost/http://x/", "/http://x/", b"localhost"),
        ("http:///health", "/health", b""),
        ("/http://x/", "/http://x/", b"other"),
        ("//localhost/x", "//localhost/x", b"other"),
        ("http:/x", "http:/x", b"other"),
        ("localhost:8000", "localhost:8000", b"other"),
        ("*", "*", b"other"),
    ],
)
def test_the_name_in_an_absolute_target_counts(target: str, path: str, host: bytes) -> None:
    scope, _ = seen(target, [(b"host", b"other"), (b"x-a", b"b")])
    raw, query = scope["raw_path"].decode(), scope["query_string"].decode()
    assert (f"{raw}?{query}" if query else raw) == path
    assert scope["path"] == raw.replace("%2F", "/")
    assert sorted(scope["headers"]) == [(b"host", host), (b"x-a", b"b")]


def test_two_lengths_end_the_connection_after_an_unexpected_error_too() -> None:
    """The middleware does not see the answer to such an error; the server closes for a request that asks for it."""
    headers = [(b"host", b"x"), LENGTH, CHUNKED]
    seen("/", headers)
    assert headers[-1] == CLOSE


@pytest.mark.parametrize("length", [LENGTH, CHUNKED])
def test_one_length_is_left_alone(length: tuple[bytes, bytes]) -> None:
    scope, answered = seen("/", [(b"host", b"x"), length])
    assert (scope["headers"], answered) == ([(b"host", b"x"), length], [])
