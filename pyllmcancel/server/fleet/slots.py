"""The limit of simultaneous questions to one peer: each takes a connection on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

MAX_AT_ONCE = 16  # questions of one owner, to one peer
TOO_MUCH_AT_ONCE = "is asked too many questions at once"  # why there is no answer, though the peer is not at fault


@dataclass(eq=False, slots=True)
class OwnerSlots:
    """The slots of one owner. `n_users` counts the users that wait for a slot or have one."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))
    n_users: int = 0


class PeerSlots:
    """Slots for questions to a peer, a bounded number for each owner.

    They keep the questions of one owner from taking the connections of all.

    Used in the event loop only.
    """

    def __init__(self) -> None:
        self._of_owner: dict[str | None, OwnerSlots] = {}

    def __len__(self) -> int:
        return len(self._of_owner)

    @asynccontextmanager
    async def of(self, owner: str | None, patience: float) -> AsyncIterator[None]:
        """Wait for a slot; TimeoutError if there is none in `patience` seconds."""
        slots = self._of_owner.setdefault(owner, OwnerSlots())
        slots.n_users += 1
        try:
            async with asyncio.timeout(patience):
                await slots.free.acquire()
            try:
                yield
            finally:
                slots.free.release()
        finally:
            slots.n_users -= 1
            if not slots.n_users:
                del self._of_owner[owner]
