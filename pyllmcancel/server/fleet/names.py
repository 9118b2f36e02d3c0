"""Host name lookups that hold nothing up when a name server hangs.

The event loop's own lookups keep a thread of its executor, even when nobody waits for the result any more. A few
lookups that hang block all its threads, and with them requests, the drain, and the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import httpx

from pyllmcancel.server.host_names import is_address

FRESH_SECONDS = 5.0  # results older than this are looked up again
Found = list[str] | OSError | UnicodeError


class Names:
    """Lookups, one at a time for each name, in a thread that ends with the process. Used in the event loop only."""

    def __init__(self) -> None:
        self._looking: dict[str, asyncio.Future[list[str]]] = {}
        # with the time when they were found, on the monotonic clock
        self._known: dict[str, tuple[list[str], float]] = {}

    async def addresses(self, host: str) -> list[str]:
        """Return the present addresses of a host; an address has itself. OSError or UnicodeError if the lookup
        fails.
        """
        if is_address(host):
            return [host]
        return await asyncio.shield(self._looking.get(host) or self._begin(host))

    async def known(self, host: str) -> list[str]:
        """Return the addresses that were found last, if any: an unreachable name server removes no peer."""
        addresses, at = self._known.get(host, ([], 0.0))
        if not addresses:
            return await self.addresses(host)
        if time.monotonic() - at > FRESH_SECONDS and host not in self._looking:
            self._begin(host)
        return addresses

    def _begin(self, host: str) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        looking = self._looking[host] = loop.create_future()
        # nobody may be waiting for it any more
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())

        def end(found: Found) -> None:
            del self._looking[host]
            if isinstance(found, Exception):
                looking.set_exception(found)
            else:
                self._known[host] = found, time.monotonic()
                looking.set_result(found)

        name = f"look up {host}"
        try:
            threading.Thread(target=look_up, args=(host, loop, end), name=name, daemon=True).start()
        except RuntimeError as error:  # the system gives this process no more threads
            end(OSError(str(error)))
        return looking


def look_up(host: str, loop: asyncio.AbstractEventLoop, end: Callable[[Found], None]) -> None:
    """Call `end` in `loop`, if the loop still runs then, with the addresses of `host` or the error."""
    found: Found
    try:
        found = list(dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError) as error:
        found = error
    try:
        loop.call_soon_threadsafe(end, found)
    except RuntimeError:  # the loop is closed
        return


class ByNames(httpx.AsyncBaseTransport):
    """Connects to the first address of a host that accepts the connection."""

    def __init__(self, names: Names, carrier: httpx.AsyncBaseTransport) -> None:
        self._names = names
        self._carrier = carrier

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        try:
            addresses = await self._names.known(host)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"the name cannot be resolved: {error}") from None
        # TLS and the header Host use the name.
        request.extensions = {**request.extensions, "sni_hostname": host}
        failed = httpx.ConnectError("the name has no address")
        for address in addresses:
            request.url = request.url.copy_with(host=address)
            try:
                return await self._carrier.handle_async_request(request)
            except httpx.ConnectError as error:
                failed = error
        raise failed

    async def aclose(self) -> None:
        await self._carrier.aclose()
