"""A connection of the load generator: what the server sees of it, and when."""

from __future__ import annotations

import asyncio
import socket

import h11
import pytest

from pyllmcancel.bench.connection import Address, Connection

pytestmark = pytest.mark.anyio
LIMIT = 10.0  # seconds


@pytest.mark.parametrize("unread", [b"", b"an answer"], ids=["nothing", "something"])
async def test_the_server_sees_the_end_before_the_event_loop_goes_on(unread: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = await Connection.open(Address.of(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        server = listener.accept()[0]
    with server:
        server.settimeout(LIMIT)
        server.sendall(unread)
        connection.abort()
        assert server.recv(1) == b""  # blocks the event loop, which could close nothing meanwhile
        connection.abort()
    assert not connection.is_open


async def test_a_reset_reaches_the_server_as_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = await Connection.open(Address.of(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        server = listener.accept()[0]
    with server:
        server.settimeout(LIMIT)
        connection.abort(reset=True)
        await asyncio.sleep(0)
        with pytest.raises(ConnectionResetError):
            server.recv(1)


async def test_after_half_a_close_the_answer_can_still_be_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address.of(f"http://127.0.0.1:{listener.getsockname()[1]}")
        connection = await Connection.open(address)
        server = listener.accept()[0]
    with server:
        server.settimeout(LIMIT)
        await connection.send(h11.Request(method="GET", target="/", headers=[("Host", address.authority)]), b"")
        connection.close_half()
        while server.recv(1024):
            pass
        server.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        head = await connection.receive()
        assert isinstance(head, h11.Response)
        assert head.status_code == 204
        connection.abort()
        connection.close_half()  # nothing is left to close
