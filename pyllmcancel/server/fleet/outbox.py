"""News on their way to one replica, or to all in one call: the newest news of each key, for a bounded number of
keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple

from pyllmcancel.requests.holds import LONGEST_PREPARATION
from pyllmcancel.server.fleet.messages import MAX_NEWS, News, Superseding
from pyllmcancel.server.fleet.transport import Answer
from pyllmcancel.shares import largest_first

logger = logging.getLogger("pyllmcancel.fleet")

MAX_KEYS = 4_096
DROPPED_AT_ONCE = 64  # keys dropped at once, because finding the owner to drop from takes a millisecond
MAX_CHARACTERS = 1 << 19  # of one message
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds, after a failure


class Waiting(NamedTuple):
    news: News
    since: float  # on the monotonic clock


class Outbox:
    """Sends news, one message at a time. Each message has everything that was waiting.

    So a storm of keystrokes makes no more messages than the other side answers. News that do not arrive are sent again,
    until newer ones of the key replace them, or until they are too old to matter.

    Parameters
    ----------
    name
        The other side's name, for the log.
    send
        Sends a message; False if it has to be sent again.
    """

    def __init__(self, name: str, send: Callable[[Superseding], Awaitable[bool]]) -> None:
        self.name = name
        self._send = send
        self._waiting: dict[tuple[str, str], Waiting] = {}  # the one that has waited longest is first
        self._filled = asyncio.Event()
        self._full = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, news: News) -> None:
        key = news.owner, news.key
        waiting = self._waiting.get(key)
        if waiting is None:
            self._make_room()
            self._waiting[key] = Waiting(news, time.monotonic())
        elif waiting.news.rank < news.rank:
            self._waiting[key] = Waiting(news, time.monotonic())
        self._filled.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"news for {self.name}")

    def _make_room(self) -> None:
        """Forget the news that have waited longest, if there are too many: those of the owner that has the most."""
        if len(self._waiting) >= MAX_KEYS:
            self._drop_oldest()
        elif len(self._waiting) < MAX_KEYS // 2:
            self._full = False

    def _drop_oldest(self) -> None:
        held = Counter(owner for owner, _ in self._waiting)
        doomed = largest_first(self._waiting, lambda key: key[0], lambda _: 1, held)
        for key in list(islice(doomed, DROPPED_AT_ONCE)):
            del self._waiting[key]
        if not self._full:
            logger.warning("%s takes news too slowly: the oldest of %d are dropped", self.name, MAX_KEYS)
        self._full = True

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await self._filled.wait()
            self._filled.clear()
            taken = self._take()
            if not taken:
                continue
            if await self._sent(taken):
                pause = FIRST_PAUSE
                continue
            self._put_back(taken)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _sent(self, taken: list[Waiting]) -> bool:
        try:
            return await self._send(Superseding(news=[one.news for one in taken]))
        except Exception:
            # Only this task sends to the other side, so it must not end.
            logger.exception("news for %s could not be sent", self.name)
            return False

    def _take(self) -> list[Waiting]:
        oldest = time.monotonic() - LONGEST_PREPARATION
        taken: list[Waiting] = []
        length = 0
        while self._waiting and len(taken) < MAX_NEWS and length < MAX_CHARACTERS:
            one = self._waiting.pop(next(iter(self._waiting)))
            length += len(one.news.owner) + len(one.news.key) + len(one.news.id)
            if one.since > oldest:
                taken.append(one)
        if self._waiting:
            self._filled.set()
        return taken

    def _put_back(self, taken: list[Waiting]) -> None:
        """Put unsent news before all that came meanwhile, except where newer ones of the key have come."""
        back: dict[tuple[str, str], Waiting] = {}
        for one in taken:
            key = one.news.owner, one.news.key
            meanwhile = self._waiting.pop(key, one)
            back[key] = one if meanwhile.news.rank < one.news.rank else meanwhile
        self._waiting = back | self._waiting
        while len(self._waiting) > MAX_KEYS:
            self._drop_oldest()
        self._filled.set()

    def forget(self) -> None:
        """Drop all news: nobody is there to receive them."""
        self._waiting.clear()

    async def close(self) -> None:
        """End sending. Idempotent; waiting news are lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def arrived(answers: list[Answer]) -> bool:
    """Return whether all have answered."""
    return all(answer.reply is not None for answer in answers)
