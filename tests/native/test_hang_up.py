"""The state of a socket's other end, found without waiting and without reading."""

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pyllmcancel._native import has_hung_up

LIMIT = 60.0  # seconds
Pair = tuple[socket.socket, socket.socket]


def connected() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    client, server = connected()
    with client, server:
        yield client, server


@pytest.mark.parametrize("unread", [b"", b"the next request"], ids=["nothing", "something"])
@pytest.mark.parametrize("way", ["close", "half-close", "reset"])
def test_an_end_shows_whatever_was_left_unread(pair: Pair, way: str, unread: bytes) -> None:
    client, server = pair
    client.sendall(unread)
    assert not has_hung_up(server.fileno())
    match way:
        case "close":
            client.close()
        case "half-close":
            client.shutdown(socket.SHUT_WR)
        case "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    end = select.poll()  # the kernel takes its time
    end.register(server, select.POLLRDHUP)
    assert end.poll(LIMIT * 1e3)
    assert has_hung_up(server.fileno())
    assert has_hung_up(server.fileno())
    if way != "reset":
        assert server.recv(100) == unread  # nothing was taken away


def test_a_client_that_reads_nothing_is_there(pair: Pair) -> None:
    _, server = pair
    server.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            server.sendall(bytes(1 << 20))
    assert not has_hung_up(server.fileno())


def test_what_is_not_open_or_no_connection_has_not_hung_up(pair: Pair) -> None:
    _, server = pair
    closed = server.detach()
    os.close(closed)
    assert not has_hung_up(closed)
    assert not has_hung_up(-1)
    with open(os.devnull) as file:
        assert not has_hung_up(file.fileno())
