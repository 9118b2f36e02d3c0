"""Fetching one picture by HTTP: from a public address only, and limited in bytes, redirects and time.

A name is resolved once, and the connection is made to the address that was checked, so that a name which is resolved
differently the next time is of no use. All of it is awaited, and so ends where it is when its task is cancelled.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

import h11

from pyllmcancel import __version__
from pyllmcancel.media.errors import BadMedia

MAX_URL = 8_192  # characters
MAX_REDIRECTS = 3
MAX_ADDRESSES = 4  # of a host that are tried
MAX_HEAD = 1 << 14  # bytes of an answer's head
PIECE = 1 << 16
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PORTS = {"http": 80, "https": 443}
HOST = re.compile(r"[A-Za-z0-9._~-]{1,253}|[0-9A-Fa-f:.]{2,45}")

# Find the addresses of a host's name; OSError if there are none.
Resolve = Callable[[str, int], Awaitable[list[str]]]

TRANSLATED = ip_network("64:ff9b::/96")  # NAT64: the last 32 bits are an address of IPv4
# Called with the number of bytes that have come; ends the fetching by raising an error.
Progress = Callable[[int], None]


class Place(NamedTuple):
    """The parts of a URL that a request needs."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


@cache
def tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def place_of(url: str) -> Place:
    """Return the parts of a URL; BadMedia if it is none of http or https."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host = host if ":" in host else host.encode("idna").decode()
    except ValueError as error:  # a UnicodeError is one, too
        raise BadMedia(f"the URL is invalid: {error}") from None
    if parts.scheme not in PORTS or not HOST.fullmatch(host):
        raise BadMedia("the URL is not one of http or https with a host")
    if "@" in parts.netloc:
        raise BadMedia("the URL has a user's name, which is never sent")
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=-._~")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=-._~?")
    return Place(parts.scheme, host, port or PORTS[parts.scheme], target)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, as the system's resolver has them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def is_public(text: str) -> bool:
    """Return whether an address belongs to the public network: to no machine, link, private network or special use.

    An address of IPv6 that stands for one of IPv4 is as public as that one.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None or address.is_site_local or address.teredo is not None:
            return False
        inner = address.ipv4_mapped or address.sixtofour
        if address in TRANSLATED:
            inner = IPv4Address(int(address) & 0xFFFF_FFFF)
        elif int(address) >> 32 == 0:  # the old form of the mapped addresses
            return False
        if inner is not None:
            return is_public(str(inner))
    return address.is_global and not address.is_multicast and not address.is_reserved


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches `max_bytes` of a picture at most, in the event loop, from addresses that are allowed."""

    max_bytes: int
    resolve: Resolve = resolve
    is_allowed: Callable[[str], bool] = is_public

    async def fetch(self, url: str, progress: Progress) -> bytes:
        """Return a URL's content; BadMedia if it is invalid, not public, or empty. The caller limits the time."""
        for _ in range(MAX_REDIRECTS + 1):
            if len(url) > MAX_URL:
                raise BadMedia(f"the URL has more than {MAX_URL:,} characters")
            place = place_of(url)
            found = await self._ask(place, progress)
            if isinstance(found, bytes):
                return found
            try:
                url = urljoin(url, found)
            except ValueError:
                raise BadMedia(f"{place.host} redirects to an invalid URL") from None
        raise BadMedia(f"there are more than {MAX_REDIRECTS} redirects")

    async def _ask(self, place: Place, progress: Progress) -> bytes | str:
        """Return a URL's content, or another URL that it redirects to."""
        reader, writer = await self._connect(place)
        try:
            return await self._exchange(place, reader, writer, progress)
        except (OSError, EOFError) as error:
            raise BadMedia(f"{place.host} broke off") from error
        except h11.RemoteProtocolError as error:
            raise BadMedia(f"{place.host} does not speak HTTP: {error}") from None
        finally:
            writer.transport.abort()

    async def _connect(self, place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            addresses = await self.resolve(place.host, place.port)
        except (OSError, UnicodeError):
            raise BadMedia(f"there is no address of {place.host}") from None
        # One address that is not public is enough: the name's owner wants to lead somewhere else.
        if not addresses or not all(map(self.is_allowed, addresses)):
            raise BadMedia(f"{place.host} is not on the public network")
        secure: dict[str, Any] = {}
        if place.scheme == "https":
            # Reads the system's certificates from the disk, the first time.
            secure = {"ssl": await asyncio.to_thread(tls), "server_hostname": place.host}
        for address in addresses[:MAX_ADDRESSES]:
            with suppress(OSError):
                return await asyncio.open_connection(address, place.port, limit=PIECE, **secure)
        raise BadMedia(f"{place.host} cannot be reached")

    async def _exchange(
        self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, progress: Progress
    ) -> bytes | str:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        headers = [
            ("Host", place.host_header),
            ("User-Agent", f"pyllmcancel/{__version__}"),
            ("Accept", "image/*, audio/*"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=place.target, headers=headers)
        writer.write((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
        await writer.drain()
        content = bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(PIECE))
            elif isinstance(event, h11.Response):
                redirect = self._read_head(place, event)
                if redirect is not None:
                    return redirect
            elif isinstance(event, h11.Data):
                content += event.data
                self._check(place, len(content))
                progress(len(event.data))
            elif isinstance(event, h11.EndOfMessage):
                return bytes(content)
            elif not isinstance(event, h11.InformationalResponse):
                raise EOFError

    def _read_head(self, place: Place, response: h11.Response) -> str | None:
        """Return the URL that an answer redirects to, if it does."""
        headers = {name: value for name, value in response.headers}  # noqa: C416 - h11's own type of headers
        if response.status_code in REDIRECTS and b"location" in headers:
            return headers[b"location"].decode("latin-1")
        if response.status_code != 200:
            raise BadMedia(f"{place.host} answered with status {response.status_code}")
        length = headers.get(b"content-length", b"")
        if length.isdigit():
            self._check(place, int(length[:20]))
        return None

    def _check(self, place: Place, n_bytes: int) -> None:
        if n_bytes > self.max_bytes:
            raise BadMedia(f"what {place.host} sends is longer than {self.max_bytes:,} bytes", too_large=True)
