"""News for the models' processes of requests that wait here: older requests with their supersede keys are cancelled
now, not when the newer one's model is loaded.

The processes get it as they get it from each other, and treat it so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyllmcancel import __version__
from pyllmcancel.router.upstream import Broken, Exchange
from pyllmcancel.server.fleet.identity import KEY_HEADER, Envelope, Identity
from pyllmcancel.server.fleet.membership import ANY_MODEL
from pyllmcancel.server.fleet.messages import News, Superseding
from pyllmcancel.server.http.request_context import PEERS_PATH

if TYPE_CHECKING:
    from pyllmcancel.router.process import ModelProcess

PATIENCE = 60.0  # seconds: a process may be busy, and then it ends soon, or answers

logger = logging.getLogger("pyllmcancel.router")


class NewerRequests:
    """Tells processes of newer requests. Used in the event loop only.

    Parameters
    ----------
    key
        The key by which the processes know this one.
    """

    def __init__(self, key: str | None) -> None:
        nonce = secrets.token_hex(16)
        self._nonce, self._name = nonce, f"front-{nonce}"  # no model has this name
        self._headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        if key is not None:
            self._headers.append((KEY_HEADER.lower().encode(), key.encode()))
        self._telling = set[asyncio.Task[None]]()

    def tell(self, news: News, processes: Iterable[ModelProcess]) -> None:
        """Send the news soon, without waiting. A process that does not get it hears of the request by another one, as
        soon as a process has accepted it.
        """
        content = self._envelope(news).model_dump_json().encode()
        for process in processes:
            task = asyncio.create_task(self._send(process, content), name=f"news for {process.name}")
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def _envelope(self, news: News) -> Envelope:
        sender = Identity(
            nonce=self._nonce,
            name=self._name,
            version=__version__,
            model=ANY_MODEL,
            clock_us=time.time_ns() // 1000,
        )
        return Envelope(sender=sender, message=Superseding(news=[news]).model_dump(mode="json"))

    async def _send(self, process: ModelProcess, content: bytes) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                status = await self._status(process, content)
        except (OSError, TimeoutError, Broken, ValueError):
            return  # it has ended, or is about to
        if status != 200:
            logger.warning("%s refuses to hear of newer requests: status %d", process.name, status)

    async def _status(self, process: ModelProcess, content: bytes) -> int:
        exchange = await Exchange.begin(process.socket, "POST", PEERS_PATH.encode(), self._headers, content)
        try:
            return (await exchange.head()).status
        finally:
            exchange.close()
