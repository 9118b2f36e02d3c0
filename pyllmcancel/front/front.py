"""The front's messages to its workers. A message reaches one worker, and waits for no other one, which may be stuck."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.front.upstream import Broken, Exchange, ask
from pyllmcancel.front.worker import HEALTH
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.from_front import WORKER_PATH

if TYPE_CHECKING:
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.server.from_front import Message, Said

T = TypeVar("T")
R = TypeVar("R", bound="Said")
DEADLINE_SECONDS = 2.0  # for an answer; a worker that does not answer then is stuck
PATIENCE = 60.0  # seconds: a process may be busy, and then it ends soon, or answers
HEADERS = [(b"content-type", b"application/json"), (b"host", b"localhost")]

logger = logging.getLogger("pyllmcancel.front")


class Front:
    """Sends messages. Used in the event loop only.

    Parameters
    ----------
    ready
        Returns the workers that serve now.
    """

    def __init__(self, ready: Callable[[], Sequence[Worker]]) -> None:
        self.ready = ready
        self._tasks = set[asyncio.Task[Any]]()

    async def ask(self, worker: Worker, message: Message, reply: type[R], seconds: float = PATIENCE) -> R | None:
        """Return the worker's reply; None if it has ended, does not answer in time, or refuses."""
        try:
            return await self.ask_or_raise(worker, message, reply, seconds)
        except ApiError as error:
            logger.warning("%s refuses a message: status %d, %s", worker.name, error.status, error.message)
        return None

    async def ask_or_raise(
        self, worker: Worker, message: Message, reply: type[R], seconds: float = DEADLINE_SECONDS
    ) -> R | None:
        """As `ask`; ApiError if the worker refuses."""
        content = message.model_dump_json().encode()
        try:
            async with asyncio.timeout(seconds):
                exchange = await Exchange.begin(worker.address, "POST", WORKER_PATH.encode(), HEADERS, content)
                try:
                    status, body = (await exchange.head()).status, await exchange.whole()
                finally:
                    exchange.close()
            if status == 200:
                return reply.model_validate_json(body)
            error = json.loads(body)["error"]
            raise ApiError(status, error["message"], error["type"], param=error["param"], code=error["code"])
        except (OSError, TimeoutError, Broken, ValueError, LookupError, TypeError):
            return None

    async def first_answering(self, workers: Sequence[Worker]) -> Worker | None:
        """Return the first of the workers that answer in time; None if none does."""
        asked = [self.spawn(is_answering(one)) for one in workers]
        for worker, answers in zip(workers, asked, strict=True):
            if await answers:
                return worker
        return None

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


async def is_answering(worker: Worker) -> bool:
    try:
        await ask(worker.address, HEALTH, seconds=DEADLINE_SECONDS)
    except (OSError, TimeoutError, Broken, ValueError):
        return False
    return True
