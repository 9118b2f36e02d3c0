"""Peers by their names: every address is tried, and a name server that hangs keeps no thread that others need."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import httpx
import pytest

from pyllmcancel import __version__
from pyllmcancel.server.fleet.addresses import Address, FleetSettings
from pyllmcancel.server.fleet.discovery import Named
from pyllmcancel.server.fleet.http_transport import HttpTransport
from pyllmcancel.server.fleet.identity import Identity
from pyllmcancel.server.fleet.names import ByNames, Names
from tests.support.http_asgi import LIMIT

pytestmark = pytest.mark.anyio


def identity() -> Identity:
    return Identity(nonce="a" * 16, name="a", version=__version__, model="m", clock_us=0)


class NameServer:
    """In the place of `socket.getaddrinfo`: hangs until `answers`. `lookups` are the threads that asked."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.lookups: list[threading.Thread] = []

    def __call__(self, host: str, port: Any, **_: Any) -> list[Any]:
        self.lookups.append(threading.current_thread())
        assert self.answers.wait(LIMIT)
        return [(0, 0, 0, "", (address, port)) for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1")]

    async def until(self, n: int) -> None:
        """Wait for so many lookups: a thread that was started asks when it gets to it."""
        async with asyncio.timeout(LIMIT):
            while len(self.lookups) < n:  # noqa: ASYNC110 - it is written by threads
                await asyncio.sleep(0.005)


async def test_without_a_thread_to_look_a_name_up_it_is_not_found_and_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names()

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="can't start new thread"):
            await names.addresses("localhost")
    assert "127.0.0.1" in await names.addresses("localhost")


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    yield server
    server.answers.set()
    for thread in server.lookups:
        thread.join(LIMIT)


async def test_a_name_server_that_hangs_keeps_one_thread_of_a_name_and_none_that_the_end_waits_for(
    name_server: NameServer,
) -> None:
    settings = FleetSettings(peers=(Address("http", "one.test", 1), Address("dns", "many.test", 1)), name="a")
    transport = HttpTransport(Named(settings, 0.01), identity, deadline=0.01)
    transport.start(lambda _: None)
    await asyncio.sleep(0)  # now it knows where to look
    (line,) = transport._lines.values()
    for _ in range(5):
        async with asyncio.timeout(LIMIT):
            await line.peer.met.wait()
        line.peer.met.clear()
        line.peer.look_now()
    await transport.close()
    await name_server.until(2)
    assert sorted(thread.name for thread in name_server.lookups) == ["look up many.test", "look up one.test"]
    assert all(thread.daemon for thread in name_server.lookups)


async def test_every_address_of_a_name_is_tried_and_the_name_is_what_tls_and_the_server_are_told(
    name_server: NameServer,
) -> None:
    name_server.answers.set()
    tried = []

    async def carry(request: httpx.Request) -> httpx.Response:
        tried.append((str(request.url), request.headers["host"], request.extensions["sni_hostname"]))
        if len(tried) == 1:
            raise httpx.ConnectError("nobody is there")
        return httpx.Response(200)

    async with httpx.AsyncClient(transport=ByNames(Names(), httpx.MockTransport(carry))) as client:
        assert (await client.post("https://one.test:1/", content=b"x")).status_code == 200
    assert tried == [(f"https://192.0.2.{n}:1/", "one.test:1", "one.test") for n in (1, 2)]


async def test_what_was_found_counts_while_it_is_looked_up_again(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, found = Names(), ["192.0.2.1", "192.0.2.2"]
    name_server.answers.set()
    assert [await names.known("one.test"), await names.known("one.test")] == [found, found]
    assert len(name_server.lookups) == 1
    name_server.answers.clear()
    monkeypatch.setattr("pyllmcancel.server.fleet.names.FRESH_SECONDS", 0.0)
    assert [await names.known("one.test"), await names.known("one.test")] == [found, found]
    await name_server.until(2)
    assert len(name_server.lookups) == 2


@pytest.mark.parametrize("host", ["a" * 64 + ".test", "..test"])
async def test_what_is_no_name_is_an_error_like_one_that_nobody_knows(host: str) -> None:
    with pytest.raises(UnicodeError):
        await Names().addresses(host)
    async with httpx.AsyncClient(transport=ByNames(Names(), httpx.MockTransport(lambda _: None))) as client:  # type: ignore[arg-type, return-value]
        with pytest.raises(httpx.ConnectError, match="cannot be resolved"):
            await client.get(f"http://{host}/")


async def test_an_address_is_looked_up_by_nobody(name_server: NameServer) -> None:
    assert await Names().addresses("127.0.0.1") == ["127.0.0.1"]
    assert await Names().addresses("::1") == ["::1"]
    assert name_server.lookups == []
