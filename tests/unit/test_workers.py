"""Workers: the turns of owners for their threads."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message

from pyllmcancel.pausing import Pause
from pyllmcancel.server.http.workers import ClientLeft, Work, Workers
from pyllmcancel.shares import Owners
from tests.support.http_asgi import LIMIT

pytestmark = pytest.mark.anyio


async def no_message() -> Message:
    nothing: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await nothing


class NotedWork(Work):
    """Notes its end."""

    n_ends = 0

    def note_end(self) -> None:
        self.n_ends += 1


class Pieces:
    """Pieces of work, in the order in which they began; each goes on until it is let go."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._changed = threading.Condition()
        self.begun: list[str] = []
        self.may_end: set[str] = set()
        self.works: dict[str, NotedWork] = {}

    async def ask(self, name: str) -> asyncio.Task[str]:
        """Ask for one, whose owner is the first letter of its name."""
        work = self.works[name] = NotedWork(name[0])
        task = asyncio.create_task(self._workers.run(no_message, lambda pause: self._compute(name, pause), work))
        await asyncio.sleep(0)
        return task

    def _compute(self, name: str, _pause: Pause) -> str:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: name in self.may_end, LIMIT)
        return name

    def let_go(self, *names: str) -> None:
        with self._changed:
            self.may_end.update(names)
            self._changed.notify_all()

    async def until_begun(self, n: int) -> list[str]:
        def wait() -> None:
            with self._changed:
                assert self._changed.wait_for(lambda: len(self.begun) >= n, LIMIT), self.begun

        await asyncio.to_thread(wait)
        return self.begun


@asynccontextmanager
async def opened(n_threads: int, *, several: bool = False) -> AsyncIterator[Pieces]:
    workers = Workers(n_threads, "test", Owners(several=several))
    pieces = Pieces(workers)
    try:
        yield pieces
    finally:
        pieces.let_go(*pieces.works)
        await workers.wait_closed()


async def test_owners_take_turns_for_a_thread() -> None:
    async with opened(1) as pieces:
        tasks = [await pieces.ask(name) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]
        pieces.let_go(*pieces.works)
        assert [await task for task in tasks] == ["a1", "a2", "a3", "b1", "b2", "c1"]
        assert pieces.begun == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_one_of_several_owners_does_not_get_all_threads() -> None:
    async with opened(2, several=True) as pieces:
        tasks = [await pieces.ask(name) for name in ("a1", "a2", "b1")]
        assert await pieces.until_begun(2) == ["a1", "b1"]
        pieces.let_go("b1")
        assert await tasks[2] == "b1"
        assert pieces.begun == ["a1", "b1"]
        pieces.let_go("a1", "a2")
        assert [await task for task in tasks[:2]] == ["a1", "a2"]


async def test_a_thread_is_not_free_before_what_was_given_up_has_really_ended() -> None:
    async with opened(1) as pieces:
        given_up, last = [await pieces.ask(name) for name in ("a1", "b1")]
        await pieces.until_begun(1)
        pieces.works["a1"].client_left()
        with pytest.raises(ClientLeft):
            await given_up
        assert pieces.works["a1"].n_ends == 0
        assert pieces.begun == ["a1"]
        pieces.let_go("a1", "b1")
        assert await last == "b1"
        assert pieces.works["a1"].n_ends == 1
