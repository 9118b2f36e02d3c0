"""How the replicas of an application find each other: by Ray's broadcast each tells where it listens for the others."""

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

Told = tuple[str, int, str]  # host, port and key: what every version of this package understands


class Handle(Protocol):
    """The part of Ray's `DeploymentHandle` that is used."""

    def broadcast(self, method_name: str, *args: Any) -> Any: ...


class Discovery:
    """A `pyllmcancel.server.fleet.discovery.Seek`. Used by the event loop for users' code only.

    Ray broadcasts to the replicas that its controller has told to be running: not to one that drains.

    Parameters
    ----------
    handle
        Of this application's own deployment.
    here
        Where this replica listens for the others. It is among those that a broadcast reaches.
    """

    def __init__(self, handle: Handle, here: Told) -> None:
        self._handle = handle
        self._here = here
        self._there: set[Told] = set()
        self._met = asyncio.Event()  # one that was not known
        self._told = ""  # why the others could not be asked, the last time

    def meet(self, other: Sequence[Any]) -> Told:
        """Another replica tells where it is; where this one is."""
        told = as_told(other)
        if told not in (self._here, *self._there):
            self._there.add(told)
            self._met.set()
        return self._here

    async def __call__(self) -> AsyncIterator[set[Place]]:
        """The others: after each broadcast, and as soon as one tells of itself."""
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
                logger.warning("the other replicas cannot be asked where they are: %s", why)
            return
        self._told = ""
        # One that hangs stays known: what may live there is not forgotten.
        came = self._there - before
        self._there = (answered | came if whole else answered | self._there) - {self._here}

    async def _ask_all(self) -> tuple[set[Told], bool]:
        """Who has answered, and whether all have."""
        until = time.monotonic() + DEADLINE_SECONDS
        async with asyncio.timeout(DEADLINE_SECONDS):
            sent = self._handle.broadcast(METHOD, self._here)
            # Not `results_async`: one that hangs would take the others' answers with it.
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
    """In one line: Ray's errors have the other side's trace in them."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
