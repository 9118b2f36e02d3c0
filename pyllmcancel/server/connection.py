"""The connection on which a request came, for those who see its end before the server does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyllmcancel.engine import compiled_module

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import Scope

# In a scope's state, put there by `http_protocol`. Other servers do not say on which connection a request came.
CONNECTION = "connection"


class Connection:
    """A client's connection.

    Attributes
    ----------
    has_hung_up
        Says whether the client has closed it; for any thread. The descriptor may be closed, and even be another
        connection's, when that is asked. But then this connection is no more, and whatever is said of the other one, to
        cancel is right.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        descriptor = transport.get_extra_info("socket").fileno()
        self.has_hung_up: Callable[[], bool] = partial(compiled_module().has_hung_up, descriptor)

    def drop(self) -> None:
        """Close it at once: whoever awaits ``receive()`` is told that the client has left. In the event loop only."""
        self._transport.abort()


def connection_of(scope: Scope) -> Connection | None:
    connection: Connection | None = scope["state"].get(CONNECTION)
    return connection


def hang_up_of(scope: Scope) -> Callable[[], bool] | None:
    """What tells whether this request's client has closed its connection, if the server lets us know."""
    connection = connection_of(scope)
    return None if connection is None else connection.has_hung_up
