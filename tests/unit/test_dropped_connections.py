"""A connection may be dropped at any time, also when it is gone already."""

import asyncio
import socket

import pytest

from pyllmcancel.server.http.connection import Connection
from pyllmcancel.server.limits import Limits

pytestmark = pytest.mark.anyio

UNREAD = b"x" * 4_000_000  # more than the kernel takes


class Lost(asyncio.Protocol):
    """Knows when the connection is lost, and tells a `Connection` so, as the server's protocol does."""

    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self.connection: Connection | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.connection is not None
        self.connection.closed()
        self.lost.set_result(exc)


async def test_a_connection_that_is_gone_can_be_dropped() -> None:
    """It was closed while bytes waited, and was gone when they were sent: asyncio's own `abort` may fail then."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Lost, sock=ours)
    protocol.connection = Connection(transport, Limits())
    transport.write(UNREAD)
    transport.close()
    reader, writer = await asyncio.open_connection(sock=theirs)
    assert len(await reader.read(-1)) == len(UNREAD)
    assert await protocol.lost is None
    protocol.connection.drop()
    protocol.connection.drop()
    writer.close()


async def test_a_drop_closes_at_once() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Lost, sock=ours)
    protocol.connection = Connection(transport, Limits())
    transport.write(UNREAD)
    protocol.connection.drop()
    assert await protocol.lost is None
    theirs.close()
