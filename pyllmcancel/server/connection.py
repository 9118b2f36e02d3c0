"""The client of a request, and its leaving: told by the HTTP server, or seen on the connection before that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyllmcancel.engine import compiled_module

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

# In a scope's state, put there by `http_protocol`. Other servers do not say on which connection a request came.
CONNECTION = "connection"


class Connection:
    """A client's connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()
        self._has_hung_up: Callable[[int], bool] = compiled_module().has_hung_up

    def has_left(self) -> bool:
        """Whether the client has closed it; for any thread.

        The descriptor may be closed, and even be another connection's, when that is asked. But then this connection is
        no more, and whatever is said of the other one, to cancel is right.
        """
        return self._has_hung_up(self._descriptor)

    def drop(self) -> None:
        """Close it at once: ``receive()`` then says that the client has left. In the event loop only."""
        self._transport.abort()


def connection_of(scope: Scope) -> Connection | None:
    connection: Connection | None = scope["state"].get(CONNECTION)
    return connection


@contextmanager
def watched(receive: Receive, on_leaving: Callable[[], object]) -> Iterator[asyncio.Task[None]]:
    """Call `on_leaving` once the client has left, inside; the task ends then.

    To await ``receive()`` is the one way that works in the queue, in prefill, while streaming, and while ``send`` is
    blocked by a client that does not read. The request's body must have been read.
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
