"""Streams through the router on real sockets: their pieces go to the client's connection past the HTTP server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pyllmcancel.front.upstream import Address, Broken, WorkerConnection
from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.protocol import WatchfulProtocol
from pyllmcancel.server.limits import Limits
from tests.front.world import COMPLETIONS, RouterWorld
from tests.support.http_asgi import LIMIT

pytestmark = pytest.mark.anyio
MANY = 64  # times what the kernel holds between two processes: 128 KiB or so
PADDING = 100_000


@pytest.fixture
async def port(world: RouterWorld) -> AsyncIterator[int]:
    """Serve the world's application as the command line does; yields the port."""
    protocol: Any = partial(WatchfulProtocol, Limits(), Connections(100, 100))
    config = uvicorn.Config(world.app, http=protocol, ws="none", log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    made = partial(protocol, config=config, server_state=state, app_state={})
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for connection in list(state.connections):
            connection.transport.abort()


class RawClient:
    """A client on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def ask(self, body: str, version: str = "1.1") -> None:
        head = f"POST {COMPLETIONS} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())

    async def head(self) -> bytes:
        async with asyncio.timeout(LIMIT):
            return (await self.reader.readuntil(b"\r\n\r\n")).lower()

    async def chunks(self) -> list[bytes]:
        found = []
        async with asyncio.timeout(LIMIT):
            while size := int(await self.reader.readline(), 16):
                found.append(await self.reader.readexactly(size))
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        return found


@pytest.fixture
async def client(port: int) -> AsyncIterator[RawClient]:
    made = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    yield made
    made.writer.close()


def events(pieces: list[bytes]) -> list[bytes]:
    return [block.removeprefix(b"data: ").rstrip() for block in b"".join(pieces).split(b"\n\n")[:-1]]


async def test_a_stream_is_whole_and_its_connection_can_be_used_again(tmp_path: Path, client: RawClient) -> None:
    for number in range(2):
        client.ask(f'{{"model": "a", "stream": true, "until": "end{number}"}}')
        assert b"transfer-encoding: chunked" in await client.head()
        (tmp_path / f"end{number}").touch()
        *counted, last = events(await client.chunks())
        assert counted == [b"%d" % (one + 1) for one in range(len(counted))]
        assert last == b"[DONE]"
    client.ask('{"model": "a"}')
    assert b"content-length" in await client.head()


async def test_an_old_client_gets_a_stream_without_chunks(tmp_path: Path, client: RawClient) -> None:
    (tmp_path / "end").touch()
    client.ask('{"model": "a", "stream": true, "until": "end"}', version="1.0")
    assert b"transfer-encoding" not in await client.head()
    async with asyncio.timeout(LIMIT):
        assert await client.reader.read() == b"data: [DONE]\n\n"


async def test_a_stream_whose_process_dies_has_an_error_and_a_last_chunk(world: RouterWorld, client: RawClient) -> None:
    client.ask('{"model": "a", "stream": true, "until": "never"}')
    await client.head()
    size = int(await client.reader.readline(), 16)  # an answer of which nothing has come would begin anew elsewhere
    await client.reader.readexactly(size + 2)
    world.keeper.unload(world.specs[0])
    assert b'"model_ended"' in events(await client.chunks())[-1]


async def test_a_client_that_reads_late_gets_everything(tmp_path: Path, port: int) -> None:
    with socket.socket() as narrow:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", port))
        client = RawClient(*await asyncio.open_connection(sock=narrow, limit=4096))
        client.ask(f'{{"model": "a", "stream": true, "until": "end", "padding": {PADDING}}}')
        await client.head()
        size = int(await client.reader.readline(), 16)
        first = await client.reader.readexactly(size + 2)
        (tmp_path / "end").touch()
        *counted, last = events([first[:-2], *await client.chunks()])
        assert counted == [b"%d" % (one + 1) for one in range(len(counted))]
        assert last == b"[DONE]"
        client.writer.close()


# -- an exchange by itself --------------------------------------------------------------------------------------------


@asynccontextmanager
async def process(folder: Path, answer: bytes) -> AsyncIterator[tuple[WorkerConnection, asyncio.Event]]:
    """A process that sends this answer; the event is set when all of it is sent."""
    sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(answer)
        await writer.drain()
        sent.set()
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / "s"), asyncio.timeout(LIMIT):
        exchange = await WorkerConnection.begin(Address("key", folder / "s"), "GET", b"/", [], b"")
        yield exchange, sent
        exchange.close()


async def test_nothing_is_read_until_the_next_piece_is_wanted(tmp_path: Path) -> None:
    piece = b"x" * PADDING
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    answer += (b"%x\r\n%b\r\n" % (len(piece), piece)) * MANY + b"0\r\n\r\n"
    async with process(tmp_path, answer) as (exchange, sent):
        await exchange.head()
        pieces = exchange.pieces()
        taken = [await anext(pieces)]
        for _ in range(100):
            await asyncio.sleep(0)  # whatever is read now would leave room
        assert not sent.is_set()  # more than the kernel holds
        taken += [one async for one in pieces]
        assert b"".join(taken) == piece * MANY


async def read(exchange: WorkerConnection) -> bytes:
    await exchange.head()
    return await exchange.whole()


@pytest.mark.parametrize("cut", [20, 60, 80])
async def test_an_answer_that_breaks_off_is_broken(tmp_path: Path, cut: int) -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n"
    async with process(tmp_path, answer[:cut]) as (exchange, _):
        with pytest.raises(Broken):
            await read(exchange)


async def test_what_is_no_body_is_an_error_wherever_it_comes(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + (b"1\r\nx\r\n" * 30_000) + b"-5\r\nxxxxx\r\n"
    async with process(tmp_path, answer) as (exchange, _):
        await exchange.head()
        with pytest.raises(Broken, match="chunk header"):
            await exchange.whole()


async def test_a_body_of_a_known_length_ends_there(tmp_path: Path) -> None:
    async with process(tmp_path, b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef") as (exchange, _):
        assert (await exchange.head()).status == 200
        assert await exchange.whole() == b"abc"
