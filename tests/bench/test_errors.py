"""Everything that is no proper answer is an error, counted by name."""

import asyncio
from collections.abc import Callable

import pytest

from pyllmcancel.bench.answer import ErrorKind
from pyllmcancel.bench.client import Ask, Client, Exchange, Outcome
from tests.support.scripted_server import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    ScriptedServer,
    chunk,
    completion,
    event,
    head,
    stream,
    token,
    whole,
)

pytestmark = pytest.mark.anyio
MakeClient = Callable[..., Client]

ASK = Ask(prompt="hello", max_tokens=2, request_id="r-1")
SUPERSEDED = {"error": {"message": "a newer request", "code": "superseded"}}

ANSWERS = {
    "nothing": (b"", ErrorKind.DISCONNECTED),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-", ErrorKind.DISCONNECTED),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n", ErrorKind.PROTOCOL_ERROR),
    "a head and no body": (head(Content_Type="application/json", Content_Length="10"), ErrorKind.BROKEN_ANSWER),
    "half a stream": (STREAM_HEAD + chunk(event(token("a"))), ErrorKind.BROKEN_ANSWER),
    "DONE, but no last chunk": (STREAM_HEAD + chunk(event(token("a", "stop"))) + chunk(DONE), ErrorKind.BROKEN_ANSWER),
    "no DONE": (stream(token("a", "stop"), done=False), ErrorKind.NO_DONE),
    "DONE without a reason": (stream(token("a"), token("b")), ErrorKind.NO_FINISH_REASON),
    "a reason that OpenAI does not know": (stream(token("a", "abort")), ErrorKind.NO_FINISH_REASON),
    "an error event": (stream(token("a"), {"error": {"message": "out of memory"}}), ErrorKind.ERROR_EVENT),
    "an error field": (
        STREAM_HEAD + chunk(b'error: {"message": "no", "code": 500}\n\n') + LAST_CHUNK,
        ErrorKind.ERROR_EVENT,
    ),
    "an event that is no JSON": (STREAM_HEAD + chunk(b"data: {oops\n\n") + LAST_CHUNK, ErrorKind.BAD_ANSWER),
    "an answer that is no object": (whole([1, 2]), ErrorKind.BAD_ANSWER),
    "a whole answer without a reason": (whole(completion(finish=None)), ErrorKind.NO_FINISH_REASON),
    "a full queue": (whole({"error": {"message": "full"}}, "429 Too Many Requests"), "http_429"),
    "a broken server": (head("500 Internal Server Error", Content_Length="4") + b"oops", "http_500"),
}


async def exchange_with(server: ScriptedServer, client: Client, answer: bytes) -> Exchange:
    call = client.start(ASK)
    peer = await server.peer()
    await peer.receive()
    peer.send(answer)
    peer.close()
    return await call.ended()


@pytest.mark.parametrize(("answer", "kind"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_an_improper_answer_is_an_error_of_its_kind(
    server: ScriptedServer, make_client: MakeClient, answer: bytes, kind: str
) -> None:
    exchange = await exchange_with(server, make_client(), answer)
    assert (exchange.outcome, exchange.error) == (Outcome.ERROR, kind)
    assert exchange.ended_at is not None


@pytest.mark.parametrize(
    "answer",
    [stream(token("a"), SUPERSEDED), whole(SUPERSEDED, "499 Client Closed Request")],
    ids=["a stream", "whole"],
)
async def test_a_superseded_answer_is_cancelled(server: ScriptedServer, make_client: MakeClient, answer: bytes) -> None:
    exchange = await exchange_with(server, make_client(), answer)
    assert (exchange.outcome, exchange.error) == (Outcome.CANCELLED, ErrorKind.SUPERSEDED)
    assert exchange.detail == "superseded a newer request"
    assert not exchange.hung_up


async def test_a_server_that_is_not_there_is_a_failed_connection(make_client: MakeClient) -> None:
    closed = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    closed.close()
    await closed.wait_closed()
    exchange = await make_client(url=f"http://127.0.0.1:{port}").ask(ASK)
    assert (exchange.outcome, exchange.error) == (Outcome.ERROR, ErrorKind.CONNECT_FAILED)
    assert str(port) in exchange.detail
