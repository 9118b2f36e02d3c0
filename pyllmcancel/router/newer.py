"""News for the models' processes of requests that wait here: older requests with their supersede keys are cancelled
now, not when the newer one's model is loaded.

The processes get them as they get them from each other, and treat them so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyllmcancel.server.fleet.messages import Newer
from pyllmcancel.server.fleet.outbox import Outbox

if TYPE_CHECKING:
    from pyllmcancel.router.front import Front
    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.server.fleet.messages import News, Superseding


class NewerRequests:
    """Tells processes of newer requests, each in a queue of its own, with one message at a time. Used in the event loop
    only.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._outboxes: dict[ModelProcess, Outbox] = {}

    def tell(self, news: News, processes: Sequence[ModelProcess]) -> None:
        """Send the news soon, without waiting. A process that does not get them hears of the request by another one, as
        soon as a process has accepted it.

        Parameters
        ----------
        processes
            All that serve now.
        """
        for gone in self._outboxes.keys() - set(processes):
            self._front.spawn(self._outboxes.pop(gone).close())
        for process in processes:
            if process not in self._outboxes:
                self._outboxes[process] = self._outbox_of(process)
            self._outboxes[process].put(news)

    def _outbox_of(self, process: ModelProcess) -> Outbox:
        async def send(message: Superseding) -> bool:
            # Sent once: what a process misses because it is stuck, another one reports when it accepts the request.
            await self._front.ask(process, message, Newer)
            return True

        return Outbox(process.name, send)

    async def close(self) -> None:
        """End sending. Idempotent."""
        await asyncio.gather(*(outbox.close() for outbox in self._outboxes.values()))
        self._outboxes.clear()
