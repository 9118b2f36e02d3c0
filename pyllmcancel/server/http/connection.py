"""The client of a request, and its leaving: reported by the HTTP server, or seen on the connection before that.

A client that has vanished, or does not read, is found by the connection's `ClientWatch`; its request is cancelled for
that reason, and its connection closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from starlette.types import Receive, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.server.http.client_watch import ClientWatch
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.limits import Limits

logger = logging.getLogger("pyllmcancel.server")

Cancel = Callable[[CancelReason], object]

# In a scope's state, set by `protocol`. Other servers do not report the connection of a request.
CONNECTION = "connection"


class Connection:
    """A client's connection, watched until it is `closed`. `on_ahead` is called when bytes have come `ahead`."""

    def __init__(self, transport: asyncio.Transport, limits: Limits, http: H11Protocol | None = None) -> None:
        self.on_ahead: Callable[[], object] = lambda: None
        self._http = http
        self._transport = transport
        self._is_closed = False
        self._cancel: Cancel | None = None  # of the request that is being answered
        # All bytes that the kernel does not take count as waiting for the client, and block the next `send`.
        transport.set_write_buffer_limits(high=1)
        self.watch = ClientWatch(transport, limits, self.give_up, asyncio.get_running_loop())
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._has_hung_up: Callable[[int], bool] = compiled_module().has_hung_up

    def has_left(self) -> bool:
        """Return whether the client has closed it; for any thread.

        The descriptor may be closed, and even be another connection's, at the time of the call. But then this
        connection is gone, so a cancel is right in any case.
        """
        return self._has_hung_up(self._descriptor)

    @contextmanager
    def answering(self, cancel: Cancel) -> Iterator[None]:
        """Call `cancel`, with the reason, if the client vanishes or does not read inside the block."""
        self._cancel = cancel
        try:
            yield
        finally:
            if self._cancel is cancel:  # otherwise the connection's next request has begun
                self._cancel = None

    def give_up(self, reason: CancelReason) -> None:
        """Cancel the request, and close: the client has vanished (DISCONNECT), or does not read (STALLED)."""
        why = "has vanished" if reason is CancelReason.DISCONNECT else "does not read"
        logger.info("the client of %s %s: its connection is closed", self._transport.get_extra_info("peername"), why)
        if self._cancel is not None:
            self._cancel(reason)
        self.drop()

    def closed(self) -> None:
        """Note that the connection is closed."""
        self._is_closed = True
        self._http, self.on_ahead = None, lambda: None
        self.watch.stop()

    # -- past the HTTP server -----------------------------------------------------------------------------------------

    def write_chunk(self, piece: bytes) -> bool:
        """Write a piece of a chunked answer, as `write` does.

        The answer's beginning and end must be sent by the HTTP server, which counts no pieces between them.
        """
        return self.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def write(self, data: bytes) -> bool:
        """Write bytes; return whether the client keeps up. If it does not, `drain` waits for it."""
        if self.is_closing:
            return True
        self._transport.write(data)
        return self.keeps_up

    @property
    def is_closing(self) -> bool:
        """True if nothing can be written any more."""
        return self._is_closed or self._transport.is_closing()

    @property
    def keeps_up(self) -> bool:
        """True if the kernel has taken everything that was written."""
        return not self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait until the kernel has taken everything that was written, or the connection is closed."""
        if self._http is not None:
            await self._http.flow.drain()

    @property
    def ahead(self) -> bytes:
        """The bytes that have come after the request."""
        return b"" if self._http is None else bytes(self._http.conn.trailing_data[0])

    def wake(self) -> None:
        """Have ``receive()`` return, with an empty message."""
        if self._http is not None and self._http.cycle is not None:
            self._http.cycle.message_event.set()

    def drop(self) -> None:
        """Close the connection at once: ``receive()`` then reports that the client has left. In the event loop only.

        Idempotent. asyncio's transport fails if it is aborted after its buffer was sent and it was closed.
        """
        if not self._is_closed:
            self._transport.abort()


def connection_of(scope: Scope) -> Connection | None:
    connection: Connection | None = scope["state"].get(CONNECTION)
    return connection


@contextmanager
def watched(receive: Receive, on_leaving: Callable[[], object]) -> Iterator[asyncio.Task[None]]:
    """Call `on_leaving` when the client leaves inside the block; the task then ends.

    Only awaiting ``receive()`` works in the queue, in prefill, while streaming, and while ``send`` is blocked by a
    client that does not read. The request's body must have been read.
    """

    async def wait_until_left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_leaving()

    watcher = asyncio.create_task(wait_until_left(), name="client watcher")
    try:
        yield watcher
    finally:
        watcher.cancel()


async def until_left(scope: Scope, receive: Receive, sending: asyncio.Task[None]) -> None:
    """Wait for the end of an answer, or of its reader: whichever comes first ends the other."""
    connection = connection_of(scope)
    try:
        with watched(receive, sending.cancel) as client_left:
            await asyncio.wait({sending})
            if sending.cancelled():
                exchange_of(scope).client_gone = True
                if connection is not None:
                    # To the HTTP server an answer that ends too early is a defect, unless its client has left.
                    connection.drop()
                    await client_left
    finally:
        sending.cancel()
    if not sending.cancelled():
        with suppress(OSError):  # some servers report so that the client is gone
            sending.result()
