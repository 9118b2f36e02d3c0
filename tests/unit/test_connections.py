"""Connections: which one goes when there is one too many, which may be dropped, and where they come from."""

import asyncio
import errno
import re
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from pyllmcancel.server.http.connection import Connection
from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.listening import Listener, listen, quiet_about_files
from pyllmcancel.server.http.protocol import AT_ONCE, WatchfulProtocol
from pyllmcancel.server.limits import ACCEPT_AT_ONCE, Limits
from tests.support.step_gate import TEST_LIMIT


class Client:
    def __init__(self, name: str, address: str = "here") -> None:
        self.name = name
        self.address = address
        self.is_open = True

    def give_way(self) -> None:
        self.is_open = False

    has_stalled = give_way


def admitted(connections: Connections, names: str, address: str = "here") -> list[Client]:
    """A client for each letter, all of which have a connection."""
    clients = [Client(name, address) for name in names]
    assert all(map(connections.admit, clients))
    return clients


def test_one_that_has_its_request_stays_and_waits_anew_after_its_answer() -> None:
    connections = Connections(2, 2)
    first, second = admitted(connections, "ab")
    connections.works(first)
    (third,) = admitted(connections, "c")
    assert (first.is_open, second.is_open) == (True, False)
    connections.waits(first)
    assert connections.admit(Client("d"))
    assert (first.is_open, third.is_open) == (True, False), "it began to wait later"


def test_a_newcomer_is_refused_when_no_connection_is_idle() -> None:
    connections = Connections(1, 1)
    (first,) = admitted(connections, "a")
    connections.works(first)
    assert not connections.admit(Client("b"))
    assert first.is_open
    connections.gone(first)
    assert connections.admit(Client("c"))


def test_an_address_that_has_its_share_makes_room_itself() -> None:
    connections = Connections(10, 2)
    (elsewhere,) = admitted(connections, "x", "there")
    mine = admitted(connections, "abc")
    assert [client.is_open for client in mine] == [False, True, True]
    assert elsewhere.is_open


def test_an_address_whose_share_works_is_refused_though_others_wait() -> None:
    connections = Connections(10, 1)
    (busy,), (elsewhere,) = admitted(connections, "a"), admitted(connections, "x", "there")
    connections.works(busy)
    assert not connections.admit(Client("b"))
    assert elsewhere.is_open


def test_what_is_gone_is_counted_no_more_and_that_can_be_said_twice() -> None:
    connections = Connections(2, 2)
    (client,) = admitted(connections, "a")
    for _ in range(2):
        connections.gone(client)
    connections.waits(client)
    assert len(connections) == 0


def test_a_flood_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(1, 1)
    for number in range(1_000):
        connections.admit(Client(str(number)))
    assert len(caplog.records) == 1


def test_a_connection_is_refused_when_all_are_closing() -> None:
    connections = Connections(2, 2)
    connections.close()
    assert not connections.admit(Client("a"))
    assert len(connections) == 0


def test_of_too_many_whose_clients_do_not_read_the_longest_at_it_has_stalled() -> None:
    connections = Connections(10, 10, most_blocked=2)
    clients = [*admitted(connections, "x", "there"), *admitted(connections, "abc")]
    for client in clients:
        connections.blocks(client)
    assert [client.is_open for client in clients] == [True, False, True, True]


def test_one_that_reads_on_begins_anew_when_it_stops_again() -> None:
    connections = Connections(10, 10, most_blocked=2)
    first, second, third = admitted(connections, "abc")
    connections.blocks(first)
    connections.blocks(second)
    connections.flows(first)
    connections.blocks(first)
    connections.blocks(third)
    assert [client.is_open for client in (first, second, third)] == [True, False, True]
    connections.gone(third)
    connections.blocks(third)
    assert first.is_open, "what is gone blocks nothing"


def protocol_of(app: ASGIApp) -> partial[WatchfulProtocol]:
    config = Config(app, lifespan="off")
    config.load()
    uvicorns = {"config": config, "server_state": ServerState(), "app_state": {}}
    return partial(WatchfulProtocol, Limits(), Connections(99, 99), **uvicorns)


@pytest.mark.anyio
async def test_what_only_reads_does_not_wait_for_all_requests_that_came_before() -> None:
    begun, read, n_requests = list[str](), asyncio.Event(), 50

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        begun.append(scope["method"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        if scope["method"] == "GET":
            read.set()

    protocol = protocol_of(app)
    pairs = [socket.socketpair() for _ in range(n_requests + 1)]
    for n, (client, _) in enumerate(pairs):
        method = b"GET" if n == n_requests else b"POST"
        client.sendall(method + b" / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    loop = asyncio.get_running_loop()
    made = await asyncio.gather(*(loop.connect_accepted_socket(protocol, theirs) for _, theirs in pairs))
    try:
        await read.wait()
        assert begun.count("POST") < n_requests // 2
        await asyncio.gather(*(loop.sock_recv(ours, 1) for ours, _ in pairs if not ours.setblocking(False)))
        assert begun.count("POST") == n_requests
    finally:
        for transport, _ in made:
            transport.abort()
        for ours, _ in pairs:
            ours.close()


@asynccontextmanager
async def one_connection(app: ASGIApp) -> AsyncIterator[tuple[socket.socket, WatchfulProtocol]]:
    protocol = protocol_of(app)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours:
        transport, made = await asyncio.get_running_loop().connect_accepted_socket(protocol, theirs)
        try:
            yield ours, made
        finally:
            transport.abort()


async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_more_of_a_head_does_not_begin_its_time_anew(method: str) -> None:
    async with one_connection(never) as (_, protocol):
        protocol.data_received(method[:1].encode())
        begun = protocol._timer._handle
        for letter in f"{method[1:]} / HTTP/1.1\r\nHost: x\r\n":
            protocol.data_received(letter.encode())
        assert begun is not None
        assert protocol._timer._handle is begun


@pytest.mark.anyio
async def test_a_request_that_waits_for_its_turn_at_the_end_gets_a_503() -> None:
    async with one_connection(never) as (client, protocol):
        protocol.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        protocol.shutdown()
        assert b" 503 " in (await asyncio.get_running_loop().sock_recv(client, 1 << 16)).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("head", "waits"),
    [
        (b"POST /v1/completions HTTP/1.1", True),
        (b"POST /v1/requests/one/cancel HTTP/1.1", False),
        (b"POST /v1/sessions/one/cancel?wait=false HTTP/1.1", False),
        (b"DELETE /v1/requests/one HTTP/1.1", False),
        (b"GET /health HTTP/1.1", False),
    ],
)
def test_cancels_and_what_only_reads_wait_for_no_turn(head: bytes, waits: bool) -> None:
    assert (AT_ONCE.match(head) is None) is waits


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.1.2.3", True), ("10.2.0.1", False), ("192.0.2.7", True), ("::1", False), ("fd00::7", True)],
)
def test_trusted_proxies_are_addresses_or_networks(host: str, expected: bool) -> None:
    connections = Connections(2, 2, proxies=("10.1.0.0/16", "192.0.2.7", "fd00::/8"))
    assert connections.is_proxy(host) == expected
    assert not Connections(2, 2).is_proxy(host)


UNREAD = b"x" * 4_000_000  # more than the kernel takes


class Lost(asyncio.Protocol):
    """Knows when the connection is lost, and tells a `Connection` so, as the server's protocol does."""

    connection: Connection

    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.closed()
        self.lost.set_result(exc)


@asynccontextmanager
async def unread() -> AsyncIterator[tuple[Lost, socket.socket]]:
    """A connection with bytes that the kernel does not take, and its client."""
    ours, theirs = socket.socketpair()
    transport, protocol = await asyncio.get_running_loop().create_connection(Lost, sock=ours)
    protocol.connection = Connection(transport, Limits())
    transport.write(UNREAD)
    with theirs:
        yield protocol, theirs


@pytest.mark.anyio
async def test_a_connection_that_is_gone_can_be_dropped() -> None:
    """It was closed while bytes waited, and was gone when they were sent: asyncio's own `abort` may fail then."""
    async with unread() as (protocol, theirs):
        protocol.connection._transport.close()
        reader, writer = await asyncio.open_connection(sock=theirs)
        assert len(await reader.read(-1)) == len(UNREAD)
        assert await protocol.lost is None
        protocol.connection.drop()
        protocol.connection.drop()
        writer.close()


@pytest.mark.anyio
async def test_a_drop_closes_at_once() -> None:
    async with unread() as (protocol, _):
        protocol.connection.drop()
        assert await protocol.lost is None


# -- sockets that are listened on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nowhere.invalid", "a" * 64 + ".invalid"], ids=["unknown", "impossible"])
def test_a_name_without_an_address_says_so(name: str) -> None:
    with pytest.raises(OSError, match=rf"cannot listen on {re.escape(name)}:80: "):
        listen(name, 80)


def test_several_addresses_are_listened_on_or_none() -> None:
    first, second = listen("127.0.0.1, 127.0.0.2", 0)
    with first, second:
        assert [one.getsockname()[0] for one in (first, second)] == ["127.0.0.1", "127.0.0.2"]
        port = second.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.2:{port}: address already in use"):
            listen("127.0.0.3,127.0.0.2", port)
        (third,) = listen("127.0.0.3", port)
        third.close()


@pytest.mark.anyio
async def test_asyncio_asks_the_listener_for_each_connection_and_others_have_their_turns() -> None:
    n, accepted, turn = 3 * ACCEPT_AT_ONCE, list[int](), 0
    all_there, loop = asyncio.Event(), asyncio.get_running_loop()

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(accepted) < n:
            loop.call_soon(count)

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(turn)
        writer.transport.abort()
        if len(accepted) == n:
            all_there.set()

    with ExitStack() as stack:
        (listener,) = listen("127.0.0.1", 0)
        for _ in range(n):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        count()
        async with await asyncio.start_server(note, sock=listener):
            await asyncio.wait_for(all_there.wait(), TEST_LIMIT)
    assert len(set(accepted)) >= 3


def test_without_a_descriptor_left_it_is_tried_once_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def accept(_: socket.socket) -> Any:
        tried.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)
    with Listener() as listener:
        with pytest.raises(OSError, match="Too many"):
            listener.accept()
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert len(tried) == 1


def test_to_have_no_descriptor_is_said_in_a_line_and_a_defect_is_not_hidden(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    try:
        quiet_about_files(loop, {"exception": OSError(errno.EMFILE, "Too many open files"), "socket": None})
        (line,) = caplog.records
        assert (line.levelname, line.exc_info) == ("WARNING", None)
        quiet_about_files(loop, {"message": "a defect", "exception": OSError(errno.EMFILE, "Too many open files")})
        assert "a defect" in caplog.text
    finally:
        loop.close()
