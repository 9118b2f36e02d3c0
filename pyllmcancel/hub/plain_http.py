"""GET by the standard library, for files that need no token: `huggingface_hub` need not be installed."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, Request, build_opener

from pyllmcancel import __version__
from pyllmcancel.errors import HubError, HubUnreachable

CONNECT_SECONDS = 5.0  # shared by all addresses of a host
LEAST_CONNECT_SECONDS = 1.0  # for one address
SILENT_SECONDS = 10.0
PIECE = 1 << 20
TEXT_LIMIT = 16 << 20  # bytes


class Body(Protocol):
    def read1(self, limit: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer whose content has not been read."""

    status_code: int
    headers: Mapping[str, str]
    body: Body
    host: str

    def iter_raw(self) -> Iterator[bytes]:
        """Yield the content; HubUnreachable if it breaks off."""
        with _in_words(self.host):
            while piece := self.body.read1(PIECE):
                yield piece


@contextmanager
def content(url: str, begin: int = 0) -> Iterator[PlainAnswer]:
    """Return the answer with the content from byte `begin` on: 206, or 200 with all of it, or 416.

    Raises
    ------
    HubError
        The server refuses.
    HubUnreachable
        It cannot be reached, or is overloaded.
    """
    host = host_of(url)
    with _in_words(host):
        try:
            response = build_opener(_Plain, _Secure).open(_request(url, begin), timeout=SILENT_SECONDS)
        except HTTPError as error:
            if not (begin and error.code == 416):
                raise
            response = error
    with closing(response):
        yield PlainAnswer(response.status, response.headers, response, host)


def host_of(url: str) -> str:
    """Return the host of an address, for people; HubError for what is no address. An account is never shown."""
    try:
        host = urlsplit(url).hostname
    except ValueError as error:
        raise HubError(f"an address is invalid: {error}") from error
    return host or "an address without a host"


def text(url: str) -> str:
    """Return a short text; see `content`. HubUnreachable if its end is missing."""
    got = bytearray()
    with content(url) as answer:
        for piece in answer.iter_raw():
            got += piece
            if len(got) > TEXT_LIMIT:
                raise HubUnreachable(f"{answer.host} gives an invalid answer: more than {TEXT_LIMIT:,} bytes")
        length = answer.headers.get("Content-Length")
    # `read1` returns nothing, without an error, where the connection ends too early.
    if length is not None and length != str(len(got)):
        raise HubUnreachable(f"{answer.host} broke off: {len(got):,} of {length} bytes came")
    return got.decode("utf-8", "replace")


class _Connection(HTTPConnection):
    """A connection that is made soon, or not at all.

    `socket.create_connection` has its time-out for each of a host's addresses: eight times 10 s, where a firewall drops
    what is sent.
    """

    def connect(self) -> None:
        n_addresses = len(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        self.timeout = max(CONNECT_SECONDS / n_addresses, LEAST_CONNECT_SECONDS)
        super().connect()
        self.sock.settimeout(SILENT_SECONDS)


class _SecureConnection(HTTPSConnection, _Connection):
    """The same with TLS, whose handshake may take as long as any answer."""


class _Plain(HTTPHandler):
    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_Connection, request)


class _Secure(HTTPSHandler):
    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, request)


def _request(url: str, begin: int) -> Request:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HubError(f"only addresses of http and https are fetched, not {parts.scheme or url}")
    account, _, address = parts.netloc.rpartition("@")
    headers = {"User-Agent": f"pyllmcancel/{__version__}", "Accept": "text/html, */*", "Accept-Encoding": "identity"}
    request = Request(parts._replace(netloc=address).geturl(), headers=headers)
    if begin:
        request.add_header("Range", f"bytes={begin}-")
    if account:  # a redirect to another host must not carry it on
        secret = base64.b64encode(unquote(account).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request


@contextmanager
def _in_words(host: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        error.close()
        if error.code == 429 or error.code >= 500:
            raise HubUnreachable(f"{host} cannot answer now (status {error.code}): try again later") from error
        raise HubError(f"{host} refuses the file: status {error.code}") from error
    except TimeoutError as error:
        raise HubUnreachable(f"{host} is silent") from error
    except URLError as error:
        raise HubUnreachable(f"{host} cannot be reached: {error.reason}") from error
    except (HTTPException, OSError) as error:
        raise HubUnreachable(f"{host} broke off: {str(error) or type(error).__name__}") from error
    except ValueError as error:  # an answer redirects to nonsense, or a name cannot be one of a host
        raise HubError(f"an address of {host} is invalid: {error}") from error
