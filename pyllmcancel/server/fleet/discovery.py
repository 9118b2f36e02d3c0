"""The addresses of peers: those of ``--peers``, whose names are looked up again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.server.fleet.addresses import Address
from pyllmcancel.server.fleet.names import Names

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.addresses import FleetSettings

logger = logging.getLogger("pyllmcancel.fleet")

RESOLVE_EVERY = 5.0  # seconds


class Place(NamedTuple):
    """The address where a peer may be, and the key that it expects; None: no key."""

    address: Address
    key: str | None


Seek = Callable[[], AsyncIterator[set[Place]]]
"""Iterates over sets of all places: a new set whenever they may have changed. It ends if they never will."""


class Named:
    """A `Seek`.

    Parameters
    ----------
    deadline
        The time limit for looking a name up, in seconds.
    """

    def __init__(self, settings: FleetSettings, deadline: float) -> None:
        self._key = settings.key
        self._fixed = {one for one in settings.peers if one.scheme != "dns"}
        self._found: dict[Address, set[Address]] = {one: set() for one in settings.peers if one.scheme == "dns"}
        self._deadline = deadline
        self._names = Names()
        self._told: dict[Address, str] = {}  # why a name could not be looked up, as it was logged

    async def __call__(self) -> AsyncIterator[set[Place]]:
        yield self._places()
        while self._found:
            for one in self._found:
                await self._look_up(one)
            yield self._places()
            await asyncio.sleep(RESOLVE_EVERY)

    def _places(self) -> set[Place]:
        return {Place(one, self._key) for one in self._fixed.union(*self._found.values())}

    async def _look_up(self, named: Address) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                hosts = await self._names.addresses(named.host)
        except (OSError, UnicodeError) as error:
            # Known addresses stay: an unreachable name server removes no peer.
            why = str(error) or f"no answer in {self._deadline:g} s"
            if self._told.get(named) != why:
                self._told[named] = why
                logger.warning("the name of %s cannot be resolved: %s", named.url, why)
            return
        self._found[named] = {Address("http", host, named.port) for host in hosts}
        self._told.pop(named, None)
