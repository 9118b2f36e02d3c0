"""Servers that compute nothing: each answers at once, or keeps a request until its client leaves. In one thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager, suppress

HELD = "X-Held"  # a request with this header is answered with the headers of a stream, and no more
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT = 60.0


class StubReplica:
    """Belongs to the loop of its `StubReplicas`."""

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers = set[asyncio.StreamWriter]()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            held = f"\r\n{HELD}:".lower().encode() in head.lower()
            writer.write(BEGUN if held else WHOLE)
            await writer.drain()
            if held:
                await reader.read()  # to the end: it has left
        self._writers.discard(writer)
        writer.close()

    async def close(self) -> None:
        """Listen no more, and cut what there is."""
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            self._server = None


class StubReplicas(AbstractContextManager["StubReplicas"]):
    """So many of them, on ports that they keep when they die and come back."""

    def __init__(self, n: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stub replicas")
        self._thread.start()
        self.all = [StubReplica() for _ in range(n)]
        for one in self.all:
            self._do(one.open())

    def _do(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(LIMIT)  # type: ignore[arg-type]

    def die(self, i: int) -> None:
        self._do(self.all[i].close())

    def come_back(self, i: int) -> None:
        self._do(self.all[i].open())

    def __exit__(self, *_: object) -> None:
        for one in self.all:
            self._do(one.close())
        self._do(asyncio.sleep(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
