"""GET by the standard library, for files that need no token: `huggingface_hub` need not be installed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from pyllmcancel import __version__
from pyllmcancel.errors import HubError, HubUnreachable

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
    host = urlsplit(url).hostname or url
    with _in_words(host):
        try:
            response = urlopen(_request(url, begin), timeout=SILENT_SECONDS)
        except HTTPError as error:
            if not (begin and error.code == 416):
                raise
            response = error
    with closing(response):
        yield PlainAnswer(response.status, response.headers, response, host)


def text(url: str) -> str:
    """Return a short text; see `content`."""
    got = bytearray()
    with content(url) as answer:
        for piece in answer.iter_raw():
            got += piece
            if len(got) > TEXT_LIMIT:
                raise HubUnreachable(f"{answer.host} gives an invalid answer: more than {TEXT_LIMIT:,} bytes")
    return got.decode("utf-8", "replace")


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
