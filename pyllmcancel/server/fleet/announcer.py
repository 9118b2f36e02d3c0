"""An observer of the engine that reports requests with a supersede key to other replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllmcancel.requests.observer import NullObserver
from pyllmcancel.server.fleet.messages import News

if TYPE_CHECKING:
    import asyncio

    from pyllmcancel.requests.request import Request


class Announcer(NullObserver):
    """Called by the threads that submit; `tell` is called in `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[News], None]) -> None:
        self._loop = loop
        self._tell = tell

    def request_added(self, request: Request) -> None:
        # A request that was superseded on its arrival supersedes nothing: whoever accepted the newer one reports that.
        if request.supersede is None or request.superseded_by is not None or self._loop.is_closed():
            return
        news = News(owner=request.owner, key=request.supersede, arrived_us=request.arrived_us, id=request.id)
        self._loop.call_soon_threadsafe(self._tell, news)
