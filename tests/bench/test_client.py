"""One request of the load generator: the meaning of its times, its cut, and everything that is no proper answer."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyllmcancel.bench.answer import ErrorKind
from pyllmcancel.bench.client import Ask, Call, Client, Connection, Exchange, Outcome, parse_url
from tests.support.scripted_server import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    Peer,
    Received,
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

ANSWER = stream(token("a"), token("b", "length"), USAGE)
MakeClient = Callable[..., Client]
Begin = Callable[..., Awaitable[tuple[Call, Peer, Received]]]


def ask(**changed: Any) -> Ask:
    fields: dict[str, Any] = {"prompt": "hello", "max_tokens": 2, "request_id": "r-1"}
    return Ask(**(fields | changed))


@pytest.fixture
def begin(server: ScriptedServer, make_client: MakeClient) -> Begin:
    """Begins a request, by the target's options and the request's, which the server has received when this returns."""

    async def begun(target: dict[str, Any] | None = None, **asked: Any) -> tuple[Call, Peer, Received]:
        call = make_client(**target or {}).start(ask(**asked))
        peer = await server.peer()
        return call, peer, await peer.receive()

    return begun


async def test_a_complete_stream_is_a_success_with_ordered_times(begin: Begin) -> None:
    call, peer, _ = await begin()
    peer.send(ANSWER)
    exchange = await call.ended()
    assert (exchange.outcome, exchange.error, exchange.status) == (Outcome.OK, None, 200)
    moments = [exchange.began_at, exchange.connected_at, exchange.sent_at, exchange.first_byte_at]
    moments += [*exchange.token_at, exchange.ended_at]
    assert None not in moments
    assert moments == sorted(moments, key=float)
    assert (exchange.prompt_tokens, exchange.completion_tokens, exchange.finish_reason) == (7, 2, "length")
    assert len(exchange.token_at) == 2


async def test_a_whole_answer_is_a_success_without_token_times(begin: Begin) -> None:
    call, peer, received = await begin({"stream": False})
    assert "stream" not in received.fields
    peer.send(whole(completion()))
    exchange = await call.ended()
    assert (exchange.outcome, exchange.token_at, exchange.n_tokens) == (Outcome.OK, [], 2)
    assert exchange.ttft is None
    assert exchange.latency is not None


@pytest.mark.parametrize("delay", [0.0, 0.05])
async def test_after_its_delay_the_client_hangs_up_with_the_request_fully_delivered(begin: Begin, delay: float) -> None:
    call, peer, received = await begin(cut_after=delay)
    assert received.fields["prompt"] == "hello"
    assert await peer.gone() == b""
    exchange = await call.ended()
    assert (exchange.outcome, exchange.error, exchange.first_byte_at) == (Outcome.CANCELLED, None, None)
    assert exchange.latency >= delay


async def test_the_timer_starts_when_the_socket_has_the_body(server: ScriptedServer, make_client: MakeClient) -> None:
    call = make_client().start(ask(prompt="x" * 16_000_000, cut_after=0.0))
    peer = await server.peer()
    # The server does not read, and the socket takes less than the body. Had the timer started, a delay of zero would
    # be over.
    for _ in range(50):
        await asyncio.sleep(0)
    assert not call.is_over
    assert call.exchange.sent_at is None
    assert len((await peer.receive()).fields["prompt"]) == 16_000_000
    exchange = await call.ended()
    assert exchange.outcome is Outcome.CANCELLED
    assert exchange.sent_at is not None


async def test_a_cut_in_mid_stream_keeps_the_tokens_that_had_come(begin: Begin) -> None:
    call, peer, _ = await begin()
    peer.send(STREAM_HEAD + chunk(event(token("a"))))
    assert await call.first_token()
    cut_at = call.cut()
    exchange = await call.ended()
    assert (exchange.outcome, exchange.ended_at, len(exchange.token_at)) == (Outcome.CANCELLED, cut_at, 1)
    await peer.gone()


async def test_what_arrives_after_the_cut_does_not_count(begin: Begin) -> None:
    call, peer, _ = await begin()
    peer.send(ANSWER)
    call.cut()
    exchange = await call.ended()
    assert (exchange.outcome, exchange.token_at) == (Outcome.CANCELLED, [])


async def test_a_cut_after_the_end_changes_nothing(begin: Begin) -> None:
    call, peer, _ = await begin()
    peer.send(ANSWER)
    exchange = await call.ended()
    assert call.cut() == exchange.ended_at
    assert exchange.outcome is Outcome.OK


async def test_a_cut_before_the_connection_ends_the_call(server: ScriptedServer, make_client: MakeClient) -> None:
    call = make_client().start(ask())
    call.cut()
    exchange = await call.ended()
    assert (exchange.outcome, exchange.sent_at) == (Outcome.CANCELLED, None)
    assert not await call.sent()
    assert not await call.first_token()


async def test_the_head_has_the_id_superseding_and_api_keys(server: ScriptedServer, make_client: MakeClient) -> None:
    client = make_client(supersede_headers=("X-Conversation-Id", "X-Other"), api_key="secret")
    call = client.start(ask(supersede="s-1"))
    headers = (await (await server.peer()).receive()).headers
    expected = {"x-request-id": "r-1", "x-conversation-id": "s-1", "x-other": "s-1", "authorization": "Bearer secret"}
    assert expected.items() <= headers.items()
    call.cut()
    await call.ended()


async def test_a_chat_asks_with_messages_and_reads_deltas(begin: Begin) -> None:
    call, peer, received = await begin({"api": "chat", "extra": {"top_k": 1}})
    assert received.line == "POST /v1/chat/completions HTTP/1.1"
    assert received.fields["messages"] == [{"role": "user", "content": "hello"}]
    assert received.fields["top_k"] == 1
    role = {"choices": [{"delta": {"role": "assistant", "content": None}, "finish_reason": None}]}
    says = {"choices": [{"delta": {"content": "hi"}, "finish_reason": None}]}
    peer.send(stream(role, says, {"choices": [{"delta": {}, "finish_reason": "stop"}]}))
    exchange = await call.ended()
    assert (exchange.outcome, len(exchange.token_at), exchange.finish_reason) == (Outcome.OK, 1, "stop")


async def test_a_request_that_takes_too_long_is_a_timeout_and_its_connection_is_closed(begin: Begin) -> None:
    call, peer, _ = await begin({"timeout": 1.0})
    exchange = await call.ended()
    assert (exchange.outcome, exchange.error) == (Outcome.ERROR, "timeout")
    await peer.gone()


async def test_events_in_pieces_with_carriage_returns_and_pings_are_read(begin: Begin) -> None:
    call, peer, _ = await begin()
    body = b": ping\r\n\r\n" + event(token("a"), b"\r\n\r\n") + event(token("b", "stop"), b"\r\n\r\n") + DONE
    peer.send(STREAM_HEAD + b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + LAST_CHUNK)
    exchange = await call.ended()
    assert (exchange.outcome, len(exchange.token_at)) == (Outcome.OK, 2)


async def test_fields_of_a_request_replace_those_of_the_target(server: ScriptedServer, make_client: MakeClient) -> None:
    client = make_client(stream=False, extra={"seed": 1, "top_k": 5})
    call = client.start(ask(fields={"seed": 2, "temperature": 0.8, "ignore_eos": False}))
    peer = await server.peer()
    fields = (await peer.receive()).fields
    assert (fields["seed"], fields["top_k"], fields["temperature"], fields["ignore_eos"]) == (2, 5, 0.8, False)
    peer.send(whole(completion()))
    await call.ended()


async def test_an_answer_is_kept_with_its_tokens_and_timings(begin: Begin) -> None:
    call, peer, _ = await begin()
    told = [{"text": "a", "index": 0, "tokens": [4]}, {"text": "b", "index": 0, "tokens": [5], "finish_reason": "stop"}]
    peer.send(stream(*({"choices": [one], "timings": {"draft_n": 2}} for one in told)))
    exchange = await call.ended()
    assert (exchange.text, exchange.tokens, exchange.timings) == ("ab", [4, 5], {"draft_n": 2})


# -- answers that are no proper ones -----------------------------------------------------------------------------------


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
    call = client.start(ask())
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


@pytest.mark.parametrize("answer", [stream(token("a"), SUPERSEDED), whole(SUPERSEDED, "499 Client Closed Request")])
async def test_a_superseded_answer_is_cancelled(server: ScriptedServer, make_client: MakeClient, answer: bytes) -> None:
    exchange = await exchange_with(server, make_client(), answer)
    assert (exchange.outcome, exchange.error) == (Outcome.CANCELLED, ErrorKind.SUPERSEDED)
    assert (exchange.detail, exchange.hung_up) == ("superseded a newer request", False)


async def test_a_server_that_is_not_there_is_a_failed_connection(make_client: MakeClient) -> None:
    closed = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    closed.close()
    await closed.wait_closed()
    exchange = await make_client(url=f"http://127.0.0.1:{port}").ask(ask())
    assert (exchange.outcome, exchange.error) == (Outcome.ERROR, ErrorKind.CONNECT_FAILED)
    assert str(port) in exchange.detail


LIMIT = 60.0  # seconds


@pytest.mark.parametrize("unread", [b"", b"an answer"], ids=["nothing", "something"])
async def test_the_server_sees_the_end_before_the_event_loop_goes_on(unread: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = await Connection.open(parse_url(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        server = listener.accept()[0]
    with server:
        server.settimeout(LIMIT)
        server.sendall(unread)
        connection.abort()
        assert server.recv(1) == b""  # blocks the event loop, which could close nothing meanwhile
        connection.abort()
