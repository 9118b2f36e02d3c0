"""The limits of open connections, and the choice of the one to close when a limit is reached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from ipaddress import ip_address, ip_network
from typing import Protocol

from pyllmcancel.server.http.heads import UNIX
from pyllmcancel.server.limits import MAX_BLOCKED

logger = logging.getLogger("pyllmcancel.server")

LOG_EVERY_SECONDS = 10.0


class Client(Protocol):
    """A connection."""

    @property
    def address(self) -> str: ...

    def give_way(self) -> None:
        """Close at once."""

    def has_stalled(self) -> None:
        """Cancel the connection's request as stalled, and close at once."""


class Turns:
    """Begins one thing in each turn of the event loop, in the order in which they came. Used in the event loop only.

    If hundreds came at once, whatever comes next would wait until all of them have begun.
    """

    def __init__(self) -> None:
        self._waiting = deque[Callable[[], object]]()

    def wait(self, begin: Callable[[], object]) -> None:
        """Call `begin` in its turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(begin)

    def _next(self) -> None:
        begin = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        begin()


class Connections:
    """All connections of a server. Used in the event loop only.

    Only connections that wait for their client (for a request, or the rest of one) are closed for others, the longest
    waiting first: half a request costs its sender nothing, and must not keep whole ones out. An address has a limit,
    too, and one of connections whose clients do not read, each of which keeps a paused request. Connections of trusted
    `proxies` belong to many clients.
    """

    def __init__(
        self, most: int, most_per_address: int, most_blocked: int = MAX_BLOCKED, *, proxies: Collection[str] = ()
    ) -> None:
        self._trusts_unix = UNIX in proxies
        self._proxies = [ip_network(proxy) for proxy in proxies if proxy != UNIX]
        self._most = most
        self._most_per_address = most_per_address
        self._most_blocked = most_blocked
        self._open: set[Client] = set()
        self._of_address: Counter[str] = Counter()
        self._waiting: dict[Client, None] = {}  # in the order in which they began to wait
        self._blocked: dict[Client, str] = {}  # likewise, with their addresses
        self.turns = Turns()  # of requests that begin
        self._closed = False
        self._n_closed = 0
        self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def is_proxy(self, host: str) -> bool:
        """Return whether a trusted proxy has this address."""
        if host == UNIX:
            return self._trusts_unix
        return bool(self._proxies) and any(ip_address(host) in network for network in self._proxies)

    def admit(self, client: Client) -> bool:
        """Count a new connection, for which another may have to be closed; False if it is itself one too many."""
        if self._closed:
            return False
        address = client.address
        crowded = self._of_address[address] >= self._most_per_address
        if crowded or len(self) >= self._most:
            self._log()
            idlest = next((one for one in self._waiting if not crowded or one.address == address), None)
            if idlest is None:
                return False
            self.gone(idlest)
            idlest.give_way()
        self._open.add(client)
        self._of_address[address] += 1
        self._waiting[client] = None
        return True

    def close(self) -> None:
        """Admit no more connections: one that is accepted during the shutdown would be cut off."""
        self._closed = True

    def waits(self, client: Client) -> None:
        """Note that the connection waits for its client."""
        if client in self._open:
            self._waiting[client] = None

    def works(self, client: Client) -> None:
        """Note that the connection has a complete request, whose answer is not complete."""
        self._waiting.pop(client, None)

    def blocks(self, client: Client) -> None:
        """Note that bytes wait for the connection's client. The first of too many at one address has stalled."""
        if client not in self._open:
            return
        address = self._blocked[client] = client.address
        neighbours = [one for one, its_address in self._blocked.items() if its_address == address]
        if len(neighbours) > self._most_blocked:
            del self._blocked[neighbours[0]]
            neighbours[0].has_stalled()

    def flows(self, client: Client) -> None:
        """Note that the client has taken everything."""
        self._blocked.pop(client, None)

    def end_blocked(self) -> None:
        """Mark connections whose clients do not read as stalled, because the server ends."""
        for client in list(self._blocked):
            client.has_stalled()

    def gone(self, client: Client) -> None:
        """Note that the connection is closed, or about to be. Idempotent."""
        if client not in self._open:
            return
        self._blocked.pop(client, None)
        self._open.discard(client)
        self._waiting.pop(client, None)
        self._of_address[client.address] -= 1
        if not self._of_address[client.address]:
            del self._of_address[client.address]

    def _log(self) -> None:
        """Log at most one line every LOG_EVERY_SECONDS: a flood of connections must not flood the log."""
        self._n_closed += 1
        if time.monotonic() - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = time.monotonic()
            logger.warning("too many connections: closed %d idle or new ones", self._n_closed)
            self._n_closed = 0
