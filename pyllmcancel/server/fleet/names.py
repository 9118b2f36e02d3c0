"""Looking host names up, so that a name server that hangs holds nobody up.

The event loop's own way keeps a thread of its executor for as long as a lookup takes, though nobody waits for that any
more. A few lookups that hang keep all of them, and with them requests, the drain, and the end of the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import httpx

from pyllmcancel.server.host_names import is_address

FRESH_SECONDS = 5.0  # what was found before that is looked up again
Found = list[str] | OSError | UnicodeError


class Names:
    """One lookup of a name at a time, in a thread that ends with the process. Belongs to the event loop."""

    def __init__(self) -> None:
        self._looking: dict[str, asyncio.Future[list[str]]] = {}
        self._known: dict[str, tuple[list[str], float]] = {}  # and when they were found, on the monotonic clock

    async def addresses(self, host: str) -> list[str]:
        """Those that a host has now; an address has itself. OSError or UnicodeError where that cannot be told."""
        if is_address(host):
            return [host]
        return await asyncio.shield(self._looking.get(host) or self._begin(host))

    async def known(self, host: str) -> list[str]:
        """Those that were found last, if any were: a name server that is away takes nobody along."""
        addresses, at = self._known.get(host, ([], 0.0))
        if not addresses:
            return await self.addresses(host)
        if time.monotonic() - at > FRESH_SECONDS and host not in self._looking:
            self._begin(host)
        return addresses

    def _begin(self, host: str) -> asyncio.Future[list[str]]:
        loop = asyncio.get_running_loop()
        looking = self._looking[host] = loop.create_future()
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be waited for no more

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
    """Have `end` called in `loop`, if that still runs then, with the addresses of `host` or why there are none."""
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
    """Carries to the first address of a host that takes the connection."""

    def __init__(self, names: Names, carrier: httpx.AsyncBaseTransport) -> None:
        self._names = names
        self._carrier = carrier

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        try:
            addresses = await self._names.known(host)
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(f"the name cannot be resolved: {error}") from None
        # For TLS the name counts, as it does in the header Host.
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
