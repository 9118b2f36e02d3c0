"""One connection to a server, which uses h11 so that nothing happens on it without the caller."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import cast

import h11
import httpx

READ_SIZE = 65_536


def parse_url(url: str) -> httpx.URL:
    """Parse ``http://host:port[/prefix]``, without a trailing ``/v1``, which the requested paths contain; ValueError if
    it is no URL of http or https.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not a URL: {url!r}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"not a http:// or https:// URL: {url!r}")
    return parsed.copy_with(path=parsed.path.rstrip("/").removesuffix("/v1") + "/")


class Connection:
    """A socket and the state of HTTP/1.1 on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._socket = writer.get_extra_info("socket")
        self._http = h11.Connection(h11.CLIENT)
        self.at_eof = False  # True if the server has closed its side, as seen while reading

    @classmethod
    async def open(cls, url: httpx.URL) -> Connection:
        context = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if context else 80)
        reader, writer = await asyncio.open_connection(url.host, port, ssl=context)
        # So drain() returns when nothing is left in user space: "sent" means that the socket has taken everything.
        writer.transport.set_write_buffer_limits(high=0)
        return cls(reader, writer)

    async def send(self, request: h11.Request, body: bytes) -> None:
        """Send headers and body in one write; returns when the socket has taken everything."""
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()

    async def receive(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next part of the answer; h11.RemoteProtocolError if the connection ends before the answer is
        complete.
        """
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return cast("h11.Event | type[h11.PAUSED]", event)
            data = await self._reader.read(READ_SIZE)
            self.at_eof = not data
            self._http.receive_data(data)

    def abort(self) -> None:
        """Close at once, in any state: the server gets a FIN before this returns. Idempotent."""
        # asyncio closes a socket when its loop comes to that, which is milliseconds later on cores that a server keeps
        # busy.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._writer.transport.abort()
