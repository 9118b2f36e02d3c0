"""A few threads for what takes long: it is given up when its client leaves, and when the server ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from pyllmcancel.errors import EngineClosedError
from pyllmcancel.pausing import Pause

if TYPE_CHECKING:
    from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):  # noqa: N818 - reads as the event it is
    """The client closed its connection."""


class Abandoned(Exception):  # noqa: N818
    """Raised by a `Pause` to end work that was given up; no caller sees it."""


class Workers:
    """Runs what one request asks for, off the event loop. Used by the event loop only.

    What runs is not interrupted: it says where it can be, by calling its `Pause`. What waits for a thread is dropped.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._threads = ThreadPoolExecutor(n_threads, "pyllmcancel-input")
        self._stopped: set[asyncio.Future[Exception]] = set()  # one for each piece of work
        self._closed = False

    @property
    def n_live(self) -> int:
        """Pieces of work that were not given up."""
        return len(self._stopped)

    async def run(self, receive: Receive, work: Callable[[Pause], T]) -> T:
        """What `work` returns, or raises.

        Parameters
        ----------
        receive
            The request's, whose body has been read: it tells when the client leaves.

        Raises
        ------
        ClientLeft, EngineClosedError
            The work was given up.
        """
        if self._closed:
            raise EngineClosedError("the server is shutting down")
        abandoned = threading.Event()

        def pause() -> None:
            if abandoned.is_set():
                raise Abandoned

        stopped: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._stopped.add(stopped)
        done = asyncio.wrap_future(self._threads.submit(work, pause))
        watcher = asyncio.create_task(_until_left(receive, stopped))
        try:
            await asyncio.wait((done, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                raise stopped.result()  # even if `done` is too: closing cancels what has not begun
            return done.result()
        finally:
            abandoned.set()
            done.cancel()  # drops what has not begun; of what has, the outcome is nobody's
            watcher.cancel()
            self._stopped.discard(stopped)

    def close(self) -> None:
        """Give everything up, and take no more. Idempotent; waits for nothing."""
        self._closed = True
        for stopped in self._stopped:
            if not stopped.done():
                stopped.set_result(EngineClosedError("the server is shutting down"))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def wait_closed(self) -> None:
        """Close, and wait for the pieces that are being worked on."""
        self.close()
        await asyncio.to_thread(self._threads.shutdown)


async def _until_left(receive: Receive, stopped: asyncio.Future[Exception]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not stopped.done():
        stopped.set_result(ClientLeft())
