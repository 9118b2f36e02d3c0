"""The workers elsewhere: those at given addresses, those of names that are looked up, and those that register."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from ssl import SSLContext
from typing import TYPE_CHECKING

from pydantic import Field

from pyllmcancel.errors import UsageError
from pyllmcancel.front.place import DNS, Place
from pyllmcancel.front.upstream import DEADLINE_SECONDS, Address, Broken, ask
from pyllmcancel.front.worker import RemoteWorker, Reports
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.from_front import WORKERS_PATH, Said, checked
from pyllmcancel.server.host_names import is_address

if TYPE_CHECKING:
    from starlette.types import Scope

    from pyllmcancel.front.place import FrontAddress

logger = logging.getLogger("pyllmcancel.front")

LOOK_EVERY = 5.0  # seconds between two looks at names, and at what has been silent
RESOLVED_WITHIN = 2.0
FORGET_AFTER = 15.0  # seconds without a word of a worker that had registered itself
MAX_PLACES = 1024

Resolve = Callable[[str], Awaitable[list[str]]]
"""Returns the addresses of a host; OSError or UnicodeError if that is impossible."""


class Registration(Said):
    """A worker's word that it is at `url`, or else at this port of the address from which it says so."""

    port: int = Field(ge=1, le=65535)
    secure: bool = False
    url: str | None = None
    leaves: bool = False


class Remotes:
    """Used in the event loop only. The front and its workers know each other by `key`; `tls` checks certificates."""

    def __init__(
        self,
        keeper: Reports,
        places: Iterable[Place],
        *,
        key: str,
        tls: SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._keeper = keeper
        self.key = key
        self._tls = tls
        self._resolve = resolve or resolved
        self._until = dict.fromkeys(places, math.inf)  # when a worker is forgotten, unless it says more
        self._hosts: dict[Place, list[str]] = {}  # the addresses of names
        self._logged: dict[Place, str] = {}  # why a name could not be looked up, as the log has it
        self._workers: dict[Address, RemoteWorker] = {}
        self._changed = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    @property
    def has_silent(self) -> bool:
        """True if a worker is expected of which nothing is known yet: it may serve any model."""
        return not self._workers or not all(one.name for one in self._workers.values())

    def start(self) -> None:
        self._use()
        self._looking = asyncio.create_task(self._keep_looking(), name="look for workers")

    async def _keep_looking(self) -> None:
        while True:
            self._changed.clear()
            for place in [one for one in self._until if not is_address(one.host)]:
                await self._look_up(place)
            self._until = {one: until for one, until in self._until.items() if until > time.monotonic()}
            self._use()
            with suppress(TimeoutError):  # not `wait_for`, which may lose a cancel
                async with asyncio.timeout(LOOK_EVERY):
                    await self._changed.wait()

    async def _look_up(self, place: Place) -> None:
        try:
            async with asyncio.timeout(RESOLVED_WITHIN):
                self._hosts[place] = await self._resolve(place.host)
            self._logged.pop(place, None)
        except (OSError, UnicodeError) as error:  # known addresses stay: no worker is lost with a name server
            why = str(error) or f"no answer in {RESOLVED_WITHIN:g} s"
            if self._logged.get(place) != why:
                logger.warning("the name %s cannot be looked up: %s", place.host, why)
            self._logged[place] = why

    async def register(self, content: bytes, scope: Scope) -> Said:
        """Take what a worker says of itself; ApiError if it is wrong."""
        said = checked(Registration, content)
        place = place_of(said, scope)
        if said.leaves and self._until.get(place, math.inf) < math.inf:
            del self._until[place]
        elif not said.leaves:
            if place not in self._until and len(self._until) >= MAX_PLACES:
                raise ApiError(429, "there are too many workers", code="too_many_workers")
            self._until[place] = max(self._until.get(place, 0.0), time.monotonic() + FORGET_AFTER)
        self._use()
        self._changed.set()
        return Said()

    def _use(self) -> None:
        """Use the workers that are wanted now, and no others."""
        wanted = {self._address(place, host) for place in self._until for host in self._hosts_of(place)}
        for address in self._workers.keys() - wanted:
            worker = self._workers.pop(address)
            worker.stop()
            self._keeper.is_forgotten(worker)
        for address in wanted - self._workers.keys():
            self._workers[address] = RemoteWorker(address, self._keeper)

    def _hosts_of(self, place: Place) -> list[str]:
        found = [place.host] if is_address(place.host) else self._hosts.get(place, [])
        if place.scheme == DNS:
            return found
        # The one that is used already, if it is still there: name servers turn their answers round.
        used = {one.host for one in self._workers if one.port == place.port}
        return [*(host for host in found if host in used), *found][:1]

    def _address(self, place: Place, host: str) -> Address:
        if place.scheme != "https":
            return Address(self.key, host=host, port=place.port)
        return Address(self.key, host=host, port=place.port, tls=self._tls, name=place.host)

    async def close(self) -> None:
        """Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._until.clear()
        workers = list(self._workers.values())
        self._use()
        await asyncio.gather(*(worker.wait() for worker in workers))


def place_of(said: Registration, scope: Scope) -> Place:
    """Return where a worker is; ApiError if it says it wrongly."""
    client = scope.get("client")
    if said.url is None and client is not None:
        return Place("https" if said.secure else "http", str(client[0]), said.port)
    try:
        return Place.parse(said.url or "", "http", "https")
    except UsageError as error:
        raise ApiError(400, str(error), param="url", code="invalid_request") from None


async def resolved(host: str) -> list[str]:
    """Return the addresses of a host. The event loop's own threads are needed by others, and a name server may hang."""
    found: Future[list[str]] = Future()

    def look_up() -> None:
        try:
            told = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.set_result(list(dict.fromkeys(str(one[4][0]) for one in told)))
        except (OSError, UnicodeError) as error:
            found.set_exception(error)

    threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(found))


worker_logger = logging.getLogger("pyllmcancel.server")  # of a server that is a worker

SAY_EVERY = 5.0  # seconds


class Registering:
    """Used in the event loop only. This server listens on `port`, `secure` with a certificate; `key` is the front's."""

    def __init__(self, front: FrontAddress, key: str, *, port: int, secure: bool) -> None:
        self._place = front.place
        self._key = key
        self._tls = ssl.create_default_context(cafile=front.ca) if front.place.scheme == "https" else None
        self._said = Registration(port=port, secure=secure, url=front.own)
        self._logged: str | None = ""  # what the log has said last; None: that it is registered
        self._task = asyncio.create_task(self._keep_saying(), name="register at the front")

    async def _keep_saying(self) -> None:
        while True:
            await self._say(self._said)
            await asyncio.sleep(SAY_EVERY)

    async def _say(self, said: Registration) -> None:
        """Tell the front; the log has whether it has heard, whenever that changes."""
        why: str | None = None
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                host = self._place.host
                if not is_address(host):
                    host = (await resolved(host))[0]
                address = Address(self._key, host=host, port=self._place.port, tls=self._tls, name=self._place.host)
                head, _ = await ask(address, WORKERS_PATH, said.model_dump_json().encode())
            if head.status != 200:
                wrong_key = head.status == 401
                why = "it does not take the worker key" if wrong_key else f"it answers with status {head.status}"
        except (OSError, Broken, ValueError) as error:
            why = str(error) or "it does not answer"
        if why != self._logged:
            self._logged = why
            shown = f"{self._place.host}:{self._place.port}"
            if why is None:
                worker_logger.info("registered at the front %s", shown)
            else:
                worker_logger.warning("this worker cannot register at the front %s: %s", shown, why)

    async def leave(self) -> None:
        """Tell the front that this server ends: it gets no more requests."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._say(self._said.model_copy(update={"leaves": True}))
