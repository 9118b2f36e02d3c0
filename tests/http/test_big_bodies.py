"""Bodies that are made to hurt: refused before any work, or worked on by threads, and given up with their clients."""

import asyncio
import gzip
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from pyllmcancel.errors import EngineClosedError
from pyllmcancel.server import bodies
from pyllmcancel.server.http.body_limit import BodyLimit
from pyllmcancel.server.http.encodings import PIECE, Decoder, zstd
from pyllmcancel.server.http.exchange import Exchange as Facts
from pyllmcancel.server.limits import INLINE_BODY, MAX_BIASES, MAX_EXTRAS, MAX_MESSAGES, MAX_PROMPTS, Limits
from pyllmcancel.shares import Owners
from tests.support import fake_native
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_process import RawClient, ServerProcess
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

USER = {"role": "user", "content": "x"}
LONG = "x" * INLINE_BODY  # of a body that is not tiny
INFILL = {"input_prefix": "a", "input_suffix": "b"}
ONE = {"max_tokens": 1}
MANY_TOKENS = [str(token) for token in range(MAX_BIASES + 1)]


class CountingModel(fake_native.Model):
    """Tells in which threads it tokenized, and waits for the test if that says so."""

    special_tokens = fake_native.Model.special_tokens | {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}

    def __init__(self) -> None:
        super().__init__(n_ctx_train=8192)
        self.threads: list[int] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def tokenize(self, text: str | bytes, **options: bool) -> list[int]:
        self.threads.append(threading.get_ident())
        self.entered.set()
        assert self.go_on.wait(LIMIT)
        return super().tokenize(text, **options)

    def hold(self) -> None:
        self.go_on.clear()


async def at_rest(world: World) -> None:
    """Wait until no worker does anything any more."""
    await world.app.state.server.workers.wait_closed()


def error_of(exchange: Exchange) -> tuple[str | None, str]:
    assert exchange.status == 400, exchange.body[:500]
    error = exchange.json()["error"]
    assert len(exchange.body) < 2_000, "what was sent is not sent back"
    return error["param"], error["reason" if "reason" in error else "code"]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a biased text": ("/completion", {"prompt": "x", "logit_bias": [["word " * 200_000, 1]]}, "logit_bias"),
    "a biased text as a key": ("/completion", {"prompt": "x", "logit_bias": {"word " * 200_000: 1}}, "logit_bias"),
    "many biased texts": ("/completion", {"prompt": "x", "logit_bias": [["w", 1]] * (MAX_BIASES + 1)}, "logit_bias"),
    "many biased tokens": (COMPLETIONS, {"prompt": "x", "logit_bias": dict.fromkeys(MANY_TOKENS, 1)}, "logit_bias"),
    "100,000 prompts": (COMPLETIONS, {"prompt": ["x"] * 99_000}, "prompt"),
    "100,000 prompts of tokens": (COMPLETIONS, {"prompt": [[1]] * 40_000}, "prompt"),
    "400 prompts of 19 kB": (COMPLETIONS, {"prompt": ["x" * 19_000] * 400}, "prompt"),
    "400 prompts, to the other": ("/completion", {"prompt": ["x" * 19_000] * 400}, "prompt"),
    "128 prompts twice": (COMPLETIONS, {"prompt": ["x"] * MAX_PROMPTS, "n": 2}, "n"),
    "a million tokens": (COMPLETIONS, {"max_tokens": 1, "prompt": [1] * 1_000_000}, "prompt"),
    "many unknown fields": (COMPLETIONS, {"prompt": "x"} | {f"x{n}": n for n in range(300)}, "x199"),
    "a large unknown field": (COMPLETIONS, {"prompt": "x", "extra": [{}] * 200_000}, "extra"),
    "many messages": ("/apply-template", {"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
    "to the other": ("/v1/messages", {"messages": [USER] * (MAX_MESSAGES + 1), "max_tokens": 1}, "messages"),
    "200,000 messages": ("/apply-template", {"messages": [USER] * 200_000}, "messages"),
    "long fields": ("/completion", {"prompt": "x", "response_fields": ["a/" * 20_000] * 128}, "response_fields"),
    "many extras": ("/infill", INFILL | {"input_extra": [{"text": "x"}] * (MAX_EXTRAS + 1)}, "input_extra"),
    "200,000 extras": ("/infill", INFILL | {"input_extra": [{"text": "x"}] * 200_000}, "input_extra"),
    "a long stop": (COMPLETIONS, {"prompt": "x", "stop": "x" * 1_000_000}, "stop"),
    "unknown samplers": ("/completion", {"prompt": "x", "samplers": ["x" * 1_000_000]}, "samplers"),
}


TOO_LONG = "x" * (5 * 1024 + 1)  # no five bytes of the fake model are less than a token
NEVER_FITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a prompt": (COMPLETIONS, {"prompt": TOO_LONG}, "prompt"),
    "the second prompt of the other": ("/completion", {"prompt": TOO_LONG}, "prompt"),
    "texts among tokens": ("/completion", {"prompt": [1, TOO_LONG[:3_000], TOO_LONG[:3_000]]}, "prompt"),
    "around a gap": (COMPLETIONS, {"prompt": "x" * 3_000, "suffix": "x" * 3_000}, "prompt"),
    "a message": (CHAT, {"messages": [{"role": "user", "content": TOO_LONG}]}, "messages"),
    "what is only to be tokenized": ("/tokenize", {"content": TOO_LONG}, "content"),
}


@pytest.mark.parametrize("kind", REFUSED | NEVER_FITS)
async def test_what_no_request_needs_or_can_never_fit_is_refused_before_anything_is_tokenized(kind: str) -> None:
    path, body, param = (REFUSED | NEVER_FITS)[kind]
    model = CountingModel()
    async with open_world(model=model, n_ctx=1024) as world:
        exchange = await world.post(path, body)
        found, code = error_of(exchange)
        assert found == param
        assert model.threads == []
        if kind in NEVER_FITS:
            assert code == "context_length_exceeded"
            assert "at least" in exchange.json()["error"]["message"]


async def test_an_error_that_repeats_a_name_repeats_its_beginning_only() -> None:
    async with open_world(unknown_fields="refuse") as world:
        param, code = error_of(await world.post(COMPLETIONS, {"prompt": "x", "y" * 100_000: 1}))
        assert (param, code) == ("y" * 100, "unsupported_field")


async def test_a_text_of_any_length_may_stand_before_a_gap_and_is_cut() -> None:
    model = CountingModel()
    async with open_world(model=model, n_ctx=64) as world:
        body = {"input_prefix": "x" * 1_000_000, "input_suffix": "y" * 1_000_000, "n_predict": 1}
        assert 0 < (await world.served("/infill", body)).json()["tokens_evaluated"] < 64


async def test_snippets_that_find_no_room_are_not_tokenized() -> None:
    model = CountingModel()
    async with open_world(model=model, n_ctx=64) as world:
        extra = [{"text": "x" * 40, "filename": f"{n}"} for n in range(1_000)]
        await world.served("/infill", INFILL | {"input_extra": extra, "n_predict": 1})
        assert len(model.threads) < 10


# -- off the event loop -----------------------------------------------------------------------------------------------


async def test_while_a_body_is_parsed_others_are_served(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, go_on = threading.Event(), threading.Event()

    def from_json(text: bytes) -> Any:
        parsing.set()
        assert go_on.wait(LIMIT)
        return json.loads(text)

    monkeypatch.setattr(bodies, "from_json", from_json)
    exchange = world.begin("POST", COMPLETIONS, {"prompt": "x", "user": LONG, "max_tokens": 1})
    assert await asyncio.to_thread(parsing.wait, LIMIT)
    assert (await world.get("/health")).status == 200
    assert exchange.status == 0
    go_on.set()
    assert (await exchange.end()).status == 200


@pytest.mark.parametrize("path", [COMPLETIONS, "/completion", "/tokenize"])
async def test_texts_are_tokenized_by_workers(path: str) -> None:
    model = CountingModel()
    async with open_world(model=model, n_ctx=8192) as world:
        assert (await world.complete("x", max_tokens=1).end()).status == 200
        assert model.threads == [threading.get_ident()], "a short body is worked on at once"
        model.threads.clear()
        model.entered.clear()
        model.hold()
        exchange = world.begin("POST", path, {"content": LONG} if path == "/tokenize" else {"prompt": LONG} | ONE)
        assert await asyncio.to_thread(model.entered.wait, LIMIT)
        assert (await world.get("/health")).status == 200
        model.go_on.set()
        assert (await exchange.end()).status == 200
        assert threading.get_ident() not in model.threads


@pytest.mark.parametrize("path", [CHAT, "/apply-template", "/v1/chat/completions/input_tokens"])
async def test_templates_are_rendered_by_workers(world: World, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = world.app.state.server.chat_template
    threads, apply = [], template.apply

    def recorded(*arguments: Any) -> Any:
        threads.append(threading.get_ident())
        return apply(*arguments)

    monkeypatch.setattr(template, "apply", recorded)
    assert (await world.post(path, {"messages": [USER], "max_tokens": 1})).status == 200
    assert threads
    assert threading.get_ident() not in threads


# -- clients that leave -----------------------------------------------------------------------------------------------

MANY_PROMPTS = {"prompt": ["x" * 100] * 100, "max_tokens": 1}


async def test_the_rest_of_a_request_is_not_tokenized_when_its_client_has_left() -> None:
    model = CountingModel()
    async with open_world(model=model) as world:
        model.hold()
        exchange = world.begin("POST", COMPLETIONS, MANY_PROMPTS, headers={"x-request-id": "mine"})
        assert await asyncio.to_thread(model.entered.wait, LIMIT)
        exchange.leave()
        await exchange.end()  # at once, and not when the worker is done
        assert exchange.body == b""
        assert (await world.request("mine"))["status"] == "cancelling"
        model.go_on.set()
        await at_rest(world)
        assert len(model.threads) == 1
        seen = await world.ended("mine")
        assert (seen["status"], seen["cancel_reason"], seen["phase"]) == ("cancelled", "disconnect", "preparing")
        assert "mine" not in world.metrics.arrivals


async def waiting_exchange(world: World, model: CountingModel) -> tuple[Exchange, list[asyncio.Task[None]]]:
    """A request whose work waits until the test lets the model go on, and what occupies the workers until then."""
    workers = world.app.state.server.workers
    blocked = threading.Barrier(workers.n_threads + 1)
    model.hold()

    def occupy(_: Callable[[], None]) -> None:
        blocked.wait(LIMIT)
        assert model.go_on.wait(LIMIT)

    tasks = [asyncio.create_task(workers.run(never, occupy)) for _ in range(workers.n_threads)]
    await asyncio.to_thread(blocked.wait, LIMIT)
    exchange = world.begin("POST", COMPLETIONS, MANY_PROMPTS)
    while len(workers._live) == len(tasks):  # noqa: ASYNC110 - it has only to be let run
        await asyncio.sleep(0)
    return exchange, tasks


async def test_work_that_has_not_begun_is_dropped_when_its_client_has_left() -> None:
    model = CountingModel()
    async with open_world(model=model) as world:
        exchange, tasks = await waiting_exchange(world, model)
        await exchange.left()
        model.go_on.set()
        await asyncio.gather(*tasks)
        await at_rest(world)
        assert model.threads == []


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


async def test_at_a_shutdown_what_is_being_tokenized_gets_its_answer_at_once() -> None:
    model = CountingModel()
    async with open_world(model=model) as world:
        model.hold()
        exchange = world.begin("POST", COMPLETIONS, MANY_PROMPTS)
        assert await asyncio.to_thread(model.entered.wait, LIMIT)
        closing = asyncio.create_task(world.shut_down(drain=60.0))
        await exchange.end()
        assert exchange.status == 503
        assert exchange.headers["retry-after"] == "1"
        model.go_on.set()
        await closing
        assert (await world.complete("x", max_tokens=1).end()).status == 503


async def test_at_a_shutdown_what_waits_for_a_worker_gets_its_answer_at_once() -> None:
    model = CountingModel()
    async with open_world(model=model) as world:
        exchange, tasks = await waiting_exchange(world, model)
        closing = asyncio.create_task(world.shut_down())
        await exchange.end()
        assert exchange.status == 503
        model.go_on.set()
        await closing
        assert all(isinstance(told, EngineClosedError) for told in await asyncio.gather(*tasks, return_exceptions=True))
        assert model.threads == []


# -- all bodies together ----------------------------------------------------------------------------------------------


async def test_long_bodies_that_come_beside_too_many_others_are_refused_and_short_ones_are_not() -> None:
    async with open_world(max_bodies=200_000) as world:
        slow = [world.begin("POST", COMPLETIONS, content=None) for _ in range(2)]
        slow[0].body_arrives(b"x" * 150_000, more=True)
        slow[1].body_arrives(b"x" * 150_000, more=True)
        await slow[1].until_body(b"busy")
        assert slow[1].status == 503
        assert (await world.complete("x", max_tokens=1).end()).status == 200
        slow[0].leave()
        await slow[0].end()
        assert (await world.complete("x", user="y" * 8_000, max_tokens=1).end()).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_makes_room_for_others_while_its_answer_is_computed(stream: bool) -> None:
    async with open_world(max_bodies=100_000) as world:
        metadata = {"x": "y" * 80_000}
        first = await world.computing("x", metadata=metadata, max_tokens=1, stream=stream)
        second = await world.submitted("second", "x", metadata=metadata, max_tokens=1)
        world.gate.open()
        assert ((await first.end()).status, (await second.end()).status) == (200, 200)


# -- a body over the limit, before it is read where its length is declared ---------------------------------------------


JSON = {"content-type": "application/json"}


def assert_too_large(exchange: Exchange) -> None:
    assert exchange.status == 413
    assert exchange.headers["connection"] == "close"
    error = json.loads(exchange.body)["error"]
    assert (error["code"], error["request_id"]) == ("body_too_large", exchange.headers["x-request-id"])


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_is_refused_before_it_is_read_or_as_soon_as_it_is_too_long(declared: bool) -> None:
    async with open_world(max_body=100) as world:
        headers = {"content-length": "101"} if declared else {}
        exchange = world.begin("POST", COMPLETIONS, content=None, headers=headers)
        if not declared:
            exchange.body_arrives(b"x" * 100, more=True)
            exchange.body_arrives(b"x", more=True)
        await exchange.until_body(b"body_too_large")
        assert_too_large(exchange)
        assert not exchange.complete, "the connection stays until the client has stopped sending"
        exchange.body_arrives(b"x" * 101)
        await exchange.end()
        assert exchange.complete


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
    async def nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("it must not get there")

    limit = BodyLimit(nothing, Limits(max_body=10), Owners(several=False), linger=0.001)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await limit(scope | {"state": {"exchange": Facts(request_id="mine")}}, receive, send)

    exchange = await Exchange(app, "POST", "/x", body=None, headers={"content-length": "11"}).end()
    assert (exchange.status, exchange.complete) == (413, True)


@pytest.mark.parametrize("chunked", [False, True])
def test_over_a_socket_the_answer_is_whole_though_all_is_sent_first(server: ServerProcess, chunked: bool) -> None:
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
