"""The process in front as one of the servers that know each other: its messages to the models' processes.

A message reaches the requests of one process only, and so waits for no other process, which may be stuck.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel import __version__
from pyllmcancel.front.process import HEALTH
from pyllmcancel.front.upstream import Broken, Exchange, ask
from pyllmcancel.server.fleet.identity import KEY_HEADER, Envelope, Identity
from pyllmcancel.server.fleet.membership import ANY_MODEL
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS
from pyllmcancel.server.http.request_context import PEERS_PATH

if TYPE_CHECKING:
    from pyllmcancel.front.process import ModelProcess
    from pyllmcancel.server.fleet.messages import Message, Reply

T = TypeVar("T")
R = TypeVar("R", bound="Reply")
PATIENCE = 60.0  # seconds: a process may be busy, and then it ends soon, or answers

logger = logging.getLogger("pyllmcancel.front")


class Front:
    """Sends messages. Used in the event loop only.

    Parameters
    ----------
    key
        The key by which the processes know this one.
    ready
        Returns the processes that serve now.
    """

    def __init__(self, key: str | None, ready: Callable[[], Sequence[ModelProcess]]) -> None:
        nonce = secrets.token_hex(16)
        self.ready = ready
        self._tasks = set[asyncio.Task[Any]]()
        self._nonce, self._name = nonce, f"front-{nonce}"  # no model has this name
        self._headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        if key is not None:
            self._headers.append((KEY_HEADER.lower().encode(), key.encode()))

    async def ask(self, process: ModelProcess, message: Message, reply: type[R], seconds: float = PATIENCE) -> R | None:
        """Return the process's reply; None if it has ended, refuses the message, or does not answer in time."""
        content = self._envelope(message).model_dump_json().encode()
        try:
            async with asyncio.timeout(seconds):
                status, body = await self._answer(process, content)
            if status == 200:
                return reply.model_validate(json.loads(body)["reply"])
        except (OSError, TimeoutError, Broken, ValueError, LookupError):
            return None
        logger.warning("%s refuses a message: status %d, %s", process.name, status, body[:200])
        return None

    async def ask_all(self, message: Message, reply: type[R]) -> dict[ModelProcess, R | None]:
        """Return the replies of all processes; None for one that does not answer in time."""
        ready = self.ready()
        replies = await asyncio.gather(*(self.ask(one, message, reply, DEADLINE_SECONDS) for one in ready))
        return dict(zip(ready, replies, strict=True))

    async def first_answering(self, processes: Sequence[ModelProcess]) -> ModelProcess | None:
        """Return the first of the processes that answer in time; None if none does."""
        asked = [self.spawn(is_answering(one)) for one in processes]
        for process, answers in zip(processes, asked, strict=True):
            if await answers:
                return process
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

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do some work to its end, also if nobody awaits it any more."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """End all work. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def is_answering(process: ModelProcess) -> bool:
    try:
        await ask(process.socket, HEALTH, seconds=DEADLINE_SECONDS)
    except (OSError, TimeoutError, Broken, ValueError):
        return False
    return True
