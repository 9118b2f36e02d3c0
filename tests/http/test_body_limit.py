"""``--max-body-mib``: a body that is too long is refused, before it is read where its length is declared."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator

import pytest
from starlette.types import Message, Receive, Scope, Send

from pyllmcancel.server.http.body_limit import BodyLimit
from pyllmcancel.server.http.encodings import PIECE, Decoder, zstd
from pyllmcancel.server.limits import Limits
from tests.support.http_asgi import Exchange
from tests.support.http_process import RawClient, ServerProcess
from tests.support.http_world import COMPLETIONS, World, open_world

JSON = {"content-type": "application/json"}


def assert_too_large(exchange: Exchange) -> None:
    assert exchange.status == 413
    assert exchange.headers["connection"] == "close"
    error = json.loads(exchange.body)["error"]
    assert (error["code"], error["request_id"]) == ("body_too_large", exchange.headers["x-request-id"])


async def test_a_declared_length_is_refused_before_anything_is_read() -> None:
    async with open_world(max_body=100) as world:
        exchange = world.begin("POST", COMPLETIONS, content=None, headers={"content-length": "101"})
        await exchange.until_body(b"body_too_large")
        assert_too_large(exchange)
        assert not exchange.complete, "the connection stays until the client has stopped sending"
        exchange.body_arrives(b"x" * 101)
        await exchange.end()
        assert exchange.complete


async def test_a_length_that_is_not_declared_is_refused_as_soon_as_it_is_too_long() -> None:
    async with open_world(max_body=100) as world:
        exchange = world.begin("POST", COMPLETIONS, content=None)
        exchange.body_arrives(b"x" * 100, more=True)
        exchange.body_arrives(b"x", more=True)
        await exchange.until_body(b"body_too_large")
        assert_too_large(exchange)
        exchange.body_arrives(b"x" * 1000, more=True)
        await exchange.left()


async def test_a_body_of_just_that_length_is_served() -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": 1}).encode()
    async with open_world(max_body=len(body)) as world:
        headers = JSON | {"content-length": str(len(body))}
        assert (await world.post(COMPLETIONS, body, headers=headers)).status == 200
        exchange = world.begin("POST", COMPLETIONS, content=None, headers=JSON)
        for piece in (body[:5], body[5:]):
            exchange.body_arrives(piece, more=True)
        exchange.body_arrives(b"")
        assert (await exchange.end()).status == 200


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "x-gzip": gzip.compress,
    "GZIP": lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:]),
    "deflate": zlib.compress,
    "Deflate": raw_deflate,
    "zstd": zstd.compress,
    "identity": bytes,
}


@pytest.mark.parametrize("encoding", PACKERS)
async def test_a_compressed_body_is_read_however_it_is_cut(world: World, encoding: str) -> None:
    packed = PACKERS[encoding](b'{"prompt": "hello", "max_tokens": 1}' + b" " * 200_000)
    whole = await world.post(COMPLETIONS, packed, headers=JSON | {"content-encoding": encoding})
    exchange = world.begin("POST", COMPLETIONS, content=None, headers=JSON | {"content-encoding": encoding})
    for at in range(0, len(packed), 100):
        exchange.body_arrives(packed[at : at + 100], more=True)
    exchange.body_arrives(b"")
    for one in (whole, await exchange.end()):
        assert (one.status, one.json()["usage"]["prompt_tokens"]) == (200, 5), one.body


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        *((encoding, b'{"prompt": "plain"}', "invalid_encoding") for encoding in ("gzip", "zstd")),
        *((encoding, PACKERS[encoding](b"{}")[:-1], "invalid_encoding") for encoding in ("gzip", "deflate", "zstd")),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"more", "invalid_encoding"),
        ("zstd", zstd.compress(b"") * 1_001, "invalid_encoding"),
        *((encoding, b"{}", "unsupported_encoding") for encoding in ("br", "gzip, gzip", "nonsense")),
    ],
)
async def test_what_cannot_be_decompressed_is_refused(world: World, encoding: str, body: bytes, code: str) -> None:
    exchange = world.begin("POST", COMPLETIONS, content=body, headers=JSON | {"content-encoding": encoding})
    await exchange.until_body(code.encode())
    unsupported = code == "unsupported_encoding"
    assert exchange.status == (415 if unsupported else 400)
    assert exchange.headers.get("accept-encoding") == ("gzip, deflate, zstd" if unsupported else None)
    await exchange.left()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_a_bomb_is_refused_at_the_limit(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n_given = 0
    feed = Decoder.feed

    def counted(self: Decoder, data: bytes) -> Iterator[bytes]:
        nonlocal n_given
        for piece in feed(self, data):
            n_given += len(piece)
            assert len(piece) <= PIECE
            yield piece

    monkeypatch.setattr(Decoder, "feed", counted)
    bomb = PACKERS[encoding](bytes(1 << 26))
    async with open_world(max_body=1 << 20) as world:
        exchange = world.begin("POST", COMPLETIONS, content=bomb, headers=JSON | {"content-encoding": encoding})
        await exchange.until_body(b"body_too_large")
        assert_too_large(exchange)
        await exchange.left()
    assert n_given <= (1 << 20) + PIECE, "no more is decompressed"


async def test_every_path_has_the_limit() -> None:
    async with open_world(max_body=10) as world:
        for path in ("/v1/requests/x/cancel", "/nowhere"):
            assert (await world.post(path, b"x" * 11)).status == 413


async def test_a_client_that_goes_on_sending_is_not_listened_to_for_ever() -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it must not get there")

    async def receive() -> Message:
        return await Exchange(nothing, "GET", "/", body=None)._receive()

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "headers": [(b"content-length", b"11")],
        "state": {"request_id": "mine"},
    }
    await BodyLimit(app, Limits(max_body=10), linger=0.001)(scope, receive, send)
    assert [message.get("more_body") for message in sent] == [None, True, False]


async def nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


@pytest.mark.parametrize("chunked", [False, True])
def test_over_a_socket_the_answer_arrives_whole_though_the_client_sends_all_first(
    server: ServerProcess, chunked: bool
) -> None:
    n_bytes = 9 << 20
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {n_bytes}"
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
    with RawClient(server.port) as client:
        client.socket.sendall(head)
        if chunked:
            client.socket.sendall(f"{n_bytes:x}\r\n".encode())
        client.socket.sendall(b"x" * n_bytes)
        if chunked:
            client.socket.sendall(b"\r\n0\r\n\r\n")
        answer = client.answer()
        assert answer.status == 413
        assert json.loads(answer.read())["error"]["code"] == "body_too_large"
        client.socket.shutdown(socket.SHUT_WR)
        assert client.socket.recv(1) == b"", "the connection is closed"
