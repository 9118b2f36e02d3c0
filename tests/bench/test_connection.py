"""A connection of the load generator: what the server sees of it, and when."""

import socket

import pytest

from pyllmcancel.bench.connection import Connection, parse_url

pytestmark = pytest.mark.anyio
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
