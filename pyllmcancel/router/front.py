"""The process in front as one of the servers that know each other: its messages to the models' processes.

A message reaches the requests of one process only, and so waits for no other process, which may be stuck.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from typing import TYPE_CHECKING, TypeVar

from pyllmcancel import __version__
from pyllmcancel.router.upstream import Broken, Exchange
from pyllmcancel.server.fleet.identity import KEY_HEADER, Envelope, Identity
from pyllmcancel.server.fleet.membership import ANY_MODEL
from pyllmcancel.server.http.request_context import PEERS_PATH

if TYPE_CHECKING:
    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.server.fleet.messages import Message, Reply

R = TypeVar("R", bound="Reply")
PATIENCE = 60.0  # seconds: a process may be busy, and then it ends soon, or answers

logger = logging.getLogger("pyllmcancel.router")


class Front:
    """Sends messages. Used in the event loop only.

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

    async def ask(self, process: ModelProcess, message: Message, reply: type[R]) -> R | None:
        """Return the process's reply; None if it has ended, refuses the message, or does not answer in `PATIENCE`."""
        content = self._envelope(message).model_dump_json().encode()
        try:
            async with asyncio.timeout(PATIENCE):
                status, body = await self._answer(process, content)
            if status == 200:
                return reply.model_validate(json.loads(body)["reply"])
        except (OSError, TimeoutError, Broken, ValueError, LookupError):
            return None
        logger.warning("%s refuses a message: status %d, %s", process.name, status, body[:200])
        return None

    def _envelope(self, message: Message) -> Envelope:
        sender = Identity(
            nonce=self._nonce,
            name=self._name,
            version=__version__,
            model=ANY_MODEL,
            clock_us=time.time_ns() // 1000,
        )
        return Envelope(sender=sender, message=message.model_dump(mode="json"))

    async def _answer(self, process: ModelProcess, content: bytes) -> tuple[int, bytes]:
        exchange = await Exchange.begin(process.socket, "POST", PEERS_PATH.encode(), self._headers, content)
        try:
            return (await exchange.head()).status, await exchange.whole()
        finally:
            exchange.close()
