"""A worker that tells its front of itself: when it serves, again and again, and before it ends."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from pyllmcancel.front.remotes import Registration, resolved
from pyllmcancel.front.upstream import DEADLINE_SECONDS, Address, Broken, ask
from pyllmcancel.server.from_front import WORKERS_PATH
from pyllmcancel.server.host_names import is_address

if TYPE_CHECKING:
    from pyllmcancel.front.place import FrontAddress

logger = logging.getLogger("pyllmcancel.server")

SAY_EVERY = 5.0  # seconds


class Registering:
    """Used in the event loop only.

    Parameters
    ----------
    key
        The key by which the front knows its workers.
    port
        The port on which this server listens; `secure` if with a certificate.
    """

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
                status = await self._status_of(said.model_dump_json().encode())
            if status != 200:
                why = "it does not take the worker key" if status == 401 else f"it answers with status {status}"
        except (OSError, Broken, ValueError) as error:
            why = str(error) or "it does not answer"
        if why != self._logged:
            self._logged = why
            shown = f"{self._place.host}:{self._place.port}"
            if why is None:
                logger.info("registered at the front %s", shown)
            else:
                logger.warning("this worker cannot register at the front %s: %s", shown, why)

    async def _status_of(self, content: bytes) -> int:
        host = self._place.host
        if not is_address(host):
            host = (await resolved(host))[0]
        address = Address(self._key, host=host, port=self._place.port, tls=self._tls, name=self._place.host)
        head, _ = await ask(address, WORKERS_PATH.encode(), body=content, method="POST")
        return head.status

    async def leave(self) -> None:
        """Tell the front that this server ends: it gets no more requests."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._say(self._said.model_copy(update={"leaves": True}))
