"""Pictures by URL: where a fetch may lead to, and what ends it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.server.media.fetching import MAX_REDIRECTS, Fetcher, is_public, place_of, resolve

pytestmark = pytest.mark.anyio

LOOPBACK = "127.0.0.1"
PUBLIC = ("93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::808:808", "::ffff:8.8.8.8")
PRIVATE = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.5"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    *("2002:a00:1::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "localhost", "", "1.2.3", "999.1.1.1"),
)
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE])
def test_only_an_address_of_the_public_network_is_allowed(address: str) -> None:
    assert is_public(address) is (address in PUBLIC)


class Peer:
    """A server that answers each request with what `script` writes, and the requests that came."""

    def __init__(self, script: Callable[[asyncio.StreamWriter, str], Awaitable[None]]) -> None:
        self._script = script
        self.heads: list[str] = []
        self.tasks = set[asyncio.Task[None]]()
        self.port = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.create_task(self._answer(reader, writer)))

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        try:
            await self._script(writer, head.split(" ")[1])
            await writer.drain()
            writer.close()
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


@asynccontextmanager
async def serving(script: Callable[[asyncio.StreamWriter, str], Awaitable[None]]) -> AsyncIterator[Peer]:
    peer = Peer(script)
    async with await asyncio.start_server(peer.take, LOOPBACK, 0) as server:
        peer.port = server.sockets[0].getsockname()[1]
        try:
            yield peer
        finally:
            await peer.close()


def says(answer: bytes) -> Callable[[asyncio.StreamWriter, str], Awaitable[None]]:
    async def script(writer: asyncio.StreamWriter, _path: str) -> None:
        writer.write(answer)

    return script


class Names:
    """A resolver, and the names that it was asked for."""

    def __init__(self, **names: list[str]) -> None:
        self._names = names
        self.asked: list[str] = []

    async def __call__(self, host: str, _port: int) -> list[str]:
        self.asked.append(host)
        found = self._names.get(host.partition(".")[0], [])
        if not found:
            raise OSError("unknown name")
        return found


def fetcher(max_bytes: int = 1_000, names: Names | None = None) -> Fetcher:
    """Return a fetcher for which this machine is the public network."""
    return Fetcher(max_bytes, names or Names(here=[LOOPBACK]), lambda address: address == LOOPBACK)


def ignore(_more: int) -> None:
    pass


async def test_what_a_server_sends_is_returned() -> None:
    async with serving(says(OK + b"Content-Length: 3\r\n\r\nabc")) as peer:
        came: list[int] = []
        url = f"http://here.test:{peer.port}/a b/ü.png?q=1 2#part"
        assert await fetcher().fetch(url, came.append) == b"abc"
        assert sum(came) == 3
        (head,) = peer.heads
        lines = head.split("\r\n")
        assert lines[0] == "GET /a%20b/%C3%BC.png?q=1%202 HTTP/1.1"
        assert f"Host: here.test:{peer.port}" in lines
        assert "Connection: close" in lines
        assert not any(line.lower().startswith(("cookie", "authorization")) for line in lines)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        OK + b"\r\nabc",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + OK + b"Content-Length: 3\r\n\r\nabc",
    ],
    ids=["chunks", "until it closes", "after a hint"],
)
async def test_an_answer_may_come_in_every_form(answer: bytes) -> None:
    async with serving(says(answer)) as peer:
        assert await fetcher().fetch(f"http://here.test:{peer.port}/", ignore) == b"abc"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answered with status 404"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "answered with status 302"),
        (OK + b"Content-Length: 1001\r\n\r\n", "longer than 1,000 bytes"),
        (OK + b"\r\n" + bytes(1_001), "longer than 1,000 bytes"),
        (OK + b"Content-Length: 5\r\n\r\nabc", "broke off|does not speak HTTP"),
        (b"", "broke off|does not speak HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (OK + b"X: " + bytes(40_000), "does not speak HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "not one of http or https"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[broken\r\n\r\n", "redirects to an invalid URL"),
    ],
)
async def test_a_bad_answer_is_told_in_words(answer: bytes, words: str) -> None:
    async with serving(says(answer)) as peer:
        with pytest.raises(BadMedia, match=words):
            await fetcher().fetch(f"http://here.test:{peer.port}/", ignore)


# -- where it leads to ------------------------------------------------------------------------------------------------


async def test_redirects_are_followed_and_each_is_looked_up() -> None:
    async def script(writer: asyncio.StreamWriter, path: str) -> None:
        moved = path != "/end"
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /end\r\n\r\n" if moved else OK + b"\r\nabc")

    names = Names(here=[LOOPBACK])
    async with serving(script) as peer:
        assert await fetcher(names=names).fetch(f"http://here.test:{peer.port}/begin", ignore) == b"abc"
        assert names.asked == ["here.test"] * 2


async def test_redirects_that_never_end_are_given_up() -> None:
    async with serving(says(b"HTTP/1.1 307 Again\r\nLocation: /\r\n\r\n")) as peer:
        with pytest.raises(BadMedia, match=f"more than {MAX_REDIRECTS} redirects"):
            await fetcher().fetch(f"http://here.test:{peer.port}/", ignore)
        assert len(peer.heads) == MAX_REDIRECTS + 1


@pytest.mark.parametrize("address", ["10.0.0.1", "::1", "169.254.169.254"])
async def test_a_redirect_to_a_private_address_is_not_followed(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    answer = f"HTTP/1.1 302 Found\r\nLocation: http://{host}/secret\r\n\r\n".encode()
    async with serving(says(answer)) as peer:
        names = Names(here=[LOOPBACK], **{address.partition(".")[0]: [address]})
        with pytest.raises(BadMedia, match="not on the public network"):
            await fetcher(names=names).fetch(f"http://here.test:{peer.port}/", ignore)
        assert len(peer.heads) == 1


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "[::1]", "localhost", "localhost.", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"),
        *("[::ffff:127.0.0.1]", "0.0.0.0", "[::]"),
    ],
)
async def test_no_spelling_of_this_machine_is_connected_to(host: str) -> None:
    async with serving(says(OK + b"\r\nabc")) as peer:
        with pytest.raises(BadMedia, match=r"not on the public network|no address|not one of"):
            await Fetcher(1_000).fetch(f"http://{host}:{peer.port}/", ignore)
        assert peer.heads == []


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["127.0.0.1", "8.8.8.8"]])
async def test_a_name_that_leads_into_a_private_network_is_refused(addresses: list[str]) -> None:
    with pytest.raises(BadMedia, match=r"here\.test is not on the public network"):
        await Fetcher(1_000, Names(here=addresses)).fetch("http://here.test/", ignore)


async def test_a_name_is_looked_up_once_and_the_connection_goes_to_what_was_checked() -> None:
    class Rebinding(Names):
        async def __call__(self, host: str, port: int) -> list[str]:
            await super().__call__(host, port)
            return [LOOPBACK] if len(self.asked) == 1 else ["10.0.0.1"]

    names = Rebinding(here=[LOOPBACK])
    async with serving(says(OK + b"\r\nabc")) as peer:
        assert await fetcher(names=names).fetch(f"http://here.test:{peer.port}/", ignore) == b"abc"
        assert names.asked == ["here.test"]


async def test_an_unknown_name_and_a_closed_port_are_told_in_words() -> None:
    with pytest.raises(BadMedia, match=r"no address of nowhere\.test"):
        await fetcher().fetch("http://nowhere.test/", ignore)
    with socket.socket() as taken:  # by nobody who listens
        taken.bind((LOOPBACK, 0))
        with pytest.raises(BadMedia, match=r"here\.test cannot be reached"):
            await fetcher().fetch(f"http://here.test:{taken.getsockname()[1]}/", ignore)


@pytest.mark.parametrize(
    "url",
    [
        *("http://", "http:///x", "https://a b/", "ftp://a/", "//a/", "http://a:99999/", "http://[::1/", "gopher://a"),
        *("http://user:word@a/", "http://a@b/", f"http://{'a' * 70}.test/", "http://a..b/", "http://a%2fb/"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadMedia):
        place_of(url)


async def test_a_url_may_not_be_as_long_as_a_book() -> None:
    with pytest.raises(BadMedia, match="more than"):
        await fetcher().fetch("http://here.test/" + "a" * 10_000, ignore)


async def test_the_systems_resolver_is_asked() -> None:
    assert LOOPBACK in await resolve("127.0.0.1", 80)
