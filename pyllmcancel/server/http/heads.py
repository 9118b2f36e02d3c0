"""Heads of requests as uvicorn takes them: a target in origin form, and one way to find the end of the body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import h11

if TYPE_CHECKING:
    import uvicorn

ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


class PlainConnection(h11.Connection):
    """h11's own, whose requests are all `plain`."""

    @classmethod
    def of(cls, config: uvicorn.Config) -> PlainConnection:
        """As uvicorn would make one."""
        size = config.h11_max_incomplete_event_size
        return cls(h11.SERVER) if size is None else cls(h11.SERVER, size)

    def next_event(self) -> Any:
        event = super().next_event()
        return plain(event) if isinstance(event, h11.Request) else event


def plain(request: h11.Request) -> h11.Request:
    """The same request as most clients would say it (RFC 9112, 3.2.2 and 6.3).

    The host in an absolute target, as for a proxy, replaces ``Host``. A ``Content-Length`` beside ``Transfer-Encoding``
    is ignored, and the connection ends with the answer: a proxy on the way may have used the length, and take the rest
    for another request.
    """
    headers = list(request.headers)
    target = request.target
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is not None:
        authority, rest = absolute.groups()
        target = rest if rest.startswith(b"/") else b"/" + rest
        headers = [*_without(headers, b"host"), (b"host", authority)]
    names = {name for name, _ in headers}
    if names >= {b"content-length", b"transfer-encoding"}:
        headers = [*_without(headers, b"content-length", b"connection"), (b"connection", b"close")]
    elif absolute is None:
        return request
    return h11.Request(method=request.method, target=target, headers=headers, http_version=request.http_version)


def _without(headers: list[tuple[bytes, bytes]], *names: bytes) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in names]
