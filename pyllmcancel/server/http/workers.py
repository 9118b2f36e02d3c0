"""A few threads for long work, which is given up when its client leaves, and when the server ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Receive

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.errors import EngineClosedError
from pyllmcancel.pausing import FlaggedPause
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.server.http.connection import watched

if TYPE_CHECKING:
    from pyllmcancel._native import CancelFlag
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.requests.request import Request
    from pyllmcancel.shares import Owners

T = TypeVar("T")


class ClientLeft(Exception):  # noqa: N818 - reads as the event it is
    """The client closed its connection."""


class Abandoned(Exception):  # noqa: N818
    """Raised by a pause to end work that was given up; no caller sees it."""


def post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have the event loop make a call soon; from any thread."""
    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(call)


class Work:
    """One piece of work, and its owner: the `FlaggedPause` of its function in a thread. Used by the event loop only.

    Any thread may read the `flag`, which is raised when the work is given up.
    """

    def __init__(self, owner: str = NO_OWNER) -> None:
        self.owner = owner
        self._loop = asyncio.get_running_loop()
        # set to the reason when the work is given up
        self.stopped: asyncio.Future[Exception] = self._loop.create_future()
        self.flag: CancelFlag = compiled_module().CancelFlag()

    def stop(self, error: Exception) -> bool:
        """Give the work up: `Workers.run` raises `error`. Returns whether this call decided that.

        This works even when the work has ended, because its outcome is taken in a later turn of the event loop.
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
        """End the work at its next pause."""
        self.flag.set()

    def __call__(self) -> None:
        """Raise if the work was given up; the work calls this in its thread."""
        if self.flag.is_set():
            raise Abandoned

    def note_end(self) -> None:
        """Note the end of the work. Called once, where it was done, or where it was dropped before it began."""


class Preparation(Work):
    """A piece of a request's preparation. A cancel of the request gives it up; the request ends when it has stopped."""

    def __init__(self, engine: Engine, request: Request) -> None:
        super().__init__(request.owner)
        self._engine = engine
        self._request = request
        engine.registry.begin_work(request, partial(post, self._loop, self._give_up))

    def _give_up(self) -> None:
        self.stop(self._request.cancel_error())

    def client_left(self) -> None:
        self._engine.cancel(self._request, CancelReason.DISCONNECT)

    def server_ends(self) -> None:
        self._engine.cancel(self._request, CancelReason.SHUTDOWN)

    def note_end(self) -> None:
        self._engine.arrivals.end_work(self._request)


async def outcome(receive: Receive, done: asyncio.Future[T], work: Work) -> T:
    """Return the result of `work` when it is done, or raise its error, or that with which it was stopped."""
    with watched(receive, work.client_left):
        await asyncio.wait((done, work.stopped), return_when=asyncio.FIRST_COMPLETED)
    if work.stopped.done():
        raise work.stopped.result()  # even if `done` is too
    return done.result()


async def awaited(receive: Receive, function: Callable[[], Coroutine[Any, Any, T]], work: Work) -> T:
    """Return what a function of the event loop returns; raises its error, or that with which the work was stopped."""

    def note_end(done: asyncio.Task[T]) -> None:
        work.note_end()
        if not done.cancelled():
            done.exception()  # it is not used if the work was stopped

    done = asyncio.create_task(function())
    done.add_done_callback(note_end)
    try:
        return await outcome(receive, done, work)
    finally:
        done.cancel()


class Workers:
    """Threads that do the long work of requests, off the event loop. Used by the event loop only.

    Running work is not interrupted from outside: it calls its pause where it may end. Waiting work is dropped. Owners
    take turns, and none of several gets all threads, so that an owner with much work does not delay another.
    """

    def __init__(self, n_threads: int, name: str, owners: Owners) -> None:
        self.n_threads = n_threads
        self._owners = owners
        self._threads = ThreadPoolExecutor(n_threads, name)
        self._live: set[Work] = set()
        self._working = Counter[str]()  # the number of threads, by owner
        # the function that begins each piece of work, by owner, in the order of their turns
        self._waiting: dict[str, dict[Work, Callable[[], None]]] = {}
        self._closed = False

    async def run(self, receive: Receive, function: Callable[[FlaggedPause], T], work: Work | None = None) -> T:
        """Run `function` in a thread, and return its result or raise its error, or that with which `work` was stopped:
        ClientLeft, EngineClosedError, or another. `receive` reports when the client leaves; the body must have been
        read.
        """
        work = work or Work()
        if self._closed:
            work.note_end()
            raise EngineClosedError("the server is shutting down")
        self._live.add(work)
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(work.owner, {})[work] = partial(self._begin, function, work, done)
        self._begin_next()
        try:
            return await outcome(receive, done, work)
        finally:
            work.abandon()
            done.cancel()  # the outcome of work that has begun is not used
            self._live.discard(work)
            self._drop(work)

    def _begin_next(self) -> None:
        """Give the free threads to the next owners in turn."""
        most = self.n_threads - self._owners.several
        while self._working.total() < self.n_threads:
            owner = next((one for one in self._waiting if self._working[one] < most), None)
            if owner is None:
                return
            works = self._waiting.pop(owner)
            begin = works.pop(next(iter(works)))
            if works:
                self._waiting[owner] = works  # the owner goes behind the others
            self._working[owner] += 1
            begin()

    def _begin(self, function: Callable[[FlaggedPause], T], work: Work, done: asyncio.Future[T]) -> None:
        loop = asyncio.get_running_loop()

        def note_end(submitted: Future[T]) -> None:
            """Note the end, in the work's thread or wherever the work was dropped."""
            work.note_end()
            post(loop, partial(self._end, work, done, submitted))

        self._threads.submit(function, work).add_done_callback(note_end)

    def _end(self, work: Work, done: asyncio.Future[T], submitted: Future[T]) -> None:
        """Note that the work's thread is done, and free for other work."""
        self._working -= Counter({work.owner: 1})
        if submitted.cancelled():
            done.cancel()
        elif done.done():
            pass
        elif (error := submitted.exception()) is None:
            done.set_result(submitted.result())
        else:
            done.set_exception(error)
        if not self._closed:
            self._begin_next()

    def _drop(self, work: Work) -> None:
        """Remove work that waits for a thread."""
        works = self._waiting.get(work.owner, {})
        if works.pop(work, None) is not None:
            if not works:
                del self._waiting[work.owner]
            work.note_end()

    def close(self) -> None:
        """Give all work up, and accept no more. Idempotent; does not wait."""
        self._closed = True
        for work in list(self._live):
            work.server_ends()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def wait_closed(self) -> None:
        """Close, and wait for the pieces of work that are running."""
        self.close()
        await asyncio.to_thread(self._threads.shutdown)
