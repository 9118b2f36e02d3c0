"""Discovery among the replicas of an application: by Ray's broadcast, each sends the address of its listener for the
others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.discovery import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("pyllmcancel.ray")

METHOD = "meet"  # of `pyllmcancel.ray.replica.Replica`
MEET_EVERY = 2.0  # seconds
DEADLINE_SECONDS = 2.0  # for all answers to one broadcast

Told = tuple[str, int, str]  # host, port and key, which every version of this package understands


class Handle(Protocol):
    """The part of Ray's `DeploymentHandle` that is used."""

    def broadcast(self, method_name: str, *args: Any) -> Any: ...


class Discovery:
    """A `pyllmcancel.server.fleet.discovery.Seek`. Used by the event loop for users' code only.

    Ray broadcasts to the replicas that its controller reports as running, but not to one that drains.

    Parameters
    ----------
    handle
        The handle of this application's own deployment.
    here
        The address where this replica listens for the others. A broadcast reaches this replica, too.
    """

    def __init__(self, handle: Handle, here: Told) -> None:
        self._handle = handle
        self._here = here
        self._there: set[Told] = set()
        self._met = asyncio.Event()  # set when an unknown replica was met
        self._told = ""  # why the others could not be asked, as it was logged last

    def meet(self, other: Sequence[Any]) -> Told:
        """Take another replica's address; return this one's."""
        told = as_told(other)
        if told not in (self._here, *self._there):
            self._there.add(told)
            self._met.set()
        return self._here

    async def __call__(self) -> AsyncIterator[set[Place]]:
        """Iterate over the others: after each broadcast, and as soon as one sends its address."""
        meet_at = time.monotonic()
        while True:
            if time.monotonic() >= meet_at:
                await self._meet_all()
                meet_at = time.monotonic() + MEET_EVERY
            self._met.clear()
            yield {Place(Address("http", host, port), key) for host, port, key in self._there}
            with suppress(TimeoutError):
                async with asyncio.timeout(meet_at - time.monotonic()):
                    await self._met.wait()

    async def _meet_all(self) -> None:
        before = set(self._there)
        try:
            answered, whole = await self._ask_all()
        except Exception as error:
            if (why := said(error)) != self._told:
                self._told = why
                logger.warning("the other replicas cannot be asked for their addresses: %s", why)
            return
        self._told = ""
        # A replica that hangs stays known: its requests are not forgotten.
        came = self._there - before
        self._there = (answered | came if whole else answered | self._there) - {self._here}

    async def _ask_all(self) -> tuple[set[Told], bool]:
        """Return the replicas that have answered, and whether all have."""
        until = time.monotonic() + DEADLINE_SECONDS
        async with asyncio.timeout(DEADLINE_SECONDS):
            sent = self._handle.broadcast(METHOD, self._here)
            # Not `results_async`: a replica that hangs would lose the others' answers.
            results = await sent._fetch_replica_results_async()
        asked = [asyncio.ensure_future(one.get_async()) for one in results]
        done, late = await asyncio.wait(asked, timeout=until - time.monotonic()) if asked else (set(), set())
        for one in late:
            one.cancel()
        failed = [one for one in done if one.cancelled() or one.exception() is not None]
        answered = {as_told(one.result()) for one in done if one not in failed}
        return answered, not late and not failed


def as_told(other: Sequence[Any]) -> Told:
    host, port, key = other[:3]
    return str(host), int(port), str(key)


def said(error: BaseException) -> str:
    """Return an error in one line: Ray's errors contain the other side's traceback."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
