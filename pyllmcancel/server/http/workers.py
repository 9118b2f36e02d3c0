"""A few threads for what takes long: it is given up when its client leaves, and when the server ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.errors import EngineClosedError
from pyllmcancel.pausing import Pause
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.server.http.connection import watched

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):  # noqa: N818 - reads as the event it is
    """The client closed its connection."""


class Abandoned(Exception):  # noqa: N818
    """Raised by a `Pause` to end work that was given up; no caller sees it."""


class Work:
    """One piece of work for a thread, and whose it is. Touched by the event loop only, but where it says otherwise."""

    def __init__(self, owner: str = NO_OWNER) -> None:
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[Exception] = self._loop.create_future()  # why it was given up
        self.ended = asyncio.Event()  # its thread is done with it, or it was dropped before
        self._abandoned = threading.Event()

    def stop(self, error: Exception) -> bool:
        """Give it up: `Workers.run` raises `error`. Returns whether this call decided it.

        Also when the work has ended: its outcome is not taken before the event loop's next turns.
        """
        if self.stopped.done():
            return False
        self.abandon()
        self.stopped.set_result(error)
        return True

    def client_left(self) -> None:
        self.stop(ClientLeft())

    def server_ends(self) -> None:
        self.stop(EngineClosedError("the server is shutting down"))

    def abandon(self) -> None:
        """End it at its next `check`."""
        self._abandoned.set()

    def check(self) -> None:
        """The work's `Pause`: called by the work, in its thread."""
        if self._abandoned.is_set():
            raise Abandoned

    def note_end(self, _done: Future[Any]) -> None:
        """Called in the work's thread, or where it was dropped before it began."""
        with suppress(RuntimeError):  # the event loop has ended before
            self._loop.call_soon_threadsafe(self.ended.set)


class Workers:
    """Runs what one request asks for, off the event loop. Used by the event loop only.

    What runs is not interrupted: it says where it can be, by calling its `Pause`. What waits for a thread is dropped.
    Owners take turns, so that one that asks for a lot does not hold up another.

    Parameters
    ----------
    per_owner
        Most threads that work for one owner at once; by default all.
    """

    def __init__(self, n_threads: int, name: str, per_owner: int | None = None) -> None:
        self.n_threads = n_threads
        self._per_owner = n_threads if per_owner is None else per_owner
        self._threads = ThreadPoolExecutor(n_threads, name)
        self._live: set[Work] = set()
        self._working = Counter[str]()  # threads, by owner
        self._waiting: dict[str, dict[Work, Callable[[], None]]] = {}  # what begins each, by owner, in their turns
        self._closed = False

    @property
    def n_live(self) -> int:
        """Pieces of work whose callers wait."""
        return len(self._live)

    async def run(self, receive: Receive, function: Callable[[Pause], T], work: Work | None = None) -> T:
        """Run `function` in a thread, and return its result or raise its error.

        Parameters
        ----------
        receive
            The request's, whose body has been read: it tells when the client leaves.
        work
            What stops it; a new one by default.

        Raises
        ------
        ClientLeft, EngineClosedError
            The work was given up; or what else it was stopped with.
        """
        if self._closed:
            raise EngineClosedError("the server is shutting down")
        work = work or Work()
        self._live.add(work)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(work.owner, {})[work] = partial(self._begin, function, work, done)
        self._begin_next()
        try:
            with watched(receive, work.client_left):
                await asyncio.wait((done, work.stopped), return_when=asyncio.FIRST_COMPLETED)
            if work.stopped.done():
                raise work.stopped.result()  # even if `done` is too
            return done.result()
        finally:
            work.abandon()
            done.cancel()  # of what has begun, the outcome is not used
            self._live.discard(work)
            self._drop(work)

    def _begin_next(self) -> None:
        """Give the free threads to the next owners in turn."""
        while self._working.total() < self.n_threads:
            owner = next((one for one in self._waiting if self._working[one] < self._per_owner), None)
            if owner is None:
                return
            works = self._waiting.pop(owner)
            begin = works.pop(next(iter(works)))
            if works:
                self._waiting[owner] = works  # behind the others
            self._working[owner] += 1
            begin()

    def _begin(self, function: Callable[[Pause], T], work: Work, done: asyncio.Future[T]) -> None:
        loop = asyncio.get_running_loop()

        def note_end(submitted: Future[T]) -> None:
            """Called in the work's thread, or where it was dropped before it began."""
            work.note_end(submitted)
            with suppress(RuntimeError):  # the event loop has ended before
                loop.call_soon_threadsafe(self._end, work, done, submitted)

        self._threads.submit(function, work.check).add_done_callback(note_end)

    def _end(self, work: Work, done: asyncio.Future[T], submitted: Future[T]) -> None:
        """Its thread is done with it, and free for another."""
        self._working -= Counter({work.owner: 1})
        if submitted.cancelled():
            done.cancel()
        elif not done.done():
            set_outcome(done, submitted)
        if not self._closed:
            self._begin_next()

    def _drop(self, work: Work) -> None:
        """It waits no more."""
        works = self._waiting.get(work.owner, {})
        if works.pop(work, None) is not None:
            work.ended.set()
            if not works:
                del self._waiting[work.owner]

    def close(self) -> None:
        """Give everything up, and take no more. Idempotent; waits for nothing."""
        self._closed = True
        for work in list(self._live):
            work.server_ends()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def wait_closed(self) -> None:
        """Close, and wait for the pieces that are being worked on."""
        self.close()
        await asyncio.to_thread(self._threads.shutdown)


def set_outcome(done: asyncio.Future[T], submitted: Future[T]) -> None:
    error = submitted.exception()
    if error is None:
        done.set_result(submitted.result())
    else:
        done.set_exception(error)
