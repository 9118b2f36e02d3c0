"""The arrival of a request: accepted, reported, logged, given its deadline. What it supersedes ends with that."""

from __future__ import annotations

import codecs
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.requests.endings import Endings
    from pyllmcancel.requests.observer import Observers
    from pyllmcancel.requests.registry import Accepted, Registry
    from pyllmcancel.requests.request import Rank, Request
    from pyllmcancel.requests.watcher import Watcher

logger = logging.getLogger("pyllmcancel.engine")

ESCAPED = codecs.getencoder("unicode_escape")  # looked up here: Python imports a codec at its first use


class Arrivals:
    """Accepts requests, from any thread.

    Parameters
    ----------
    timeout
        The deadline of requests that name none, in seconds from their arrival; None for no deadline.
    """

    def __init__(
        self, registry: Registry, endings: Endings, watcher: Watcher, observers: Observers, *, timeout: float | None
    ) -> None:
        self._registry = registry
        self._endings = endings
        self._watcher = watcher
        self._observers = observers
        self._timeout = timeout

    def accept(self, request: Request) -> None:
        """Have a request wait for its turn; QueueFullError or EngineClosedError, and nothing is changed, if it
        cannot.
        """
        accepted = self._registry.accept(request)
        self._observers.request_added(request)
        self._log(request)
        self._end_superseded(accepted)
        timeout = request.params.timeout if request.params.timeout is not None else self._timeout
        if timeout is not None:
            self._watcher.at_deadline(request, request.arrived_at + timeout)

    def heed(self, owner: str, key: str, rank: Rank) -> Rank | None:
        """Cancel an older request of this supersede key, because another process has accepted a newer one.

        Returns the newest request of the key that is known here, if it is newer than that one.
        """
        newer, accepted = self._registry.heed(owner, key, rank)
        self._end_superseded(accepted)
        return newer

    def _end_superseded(self, accepted: Accepted) -> None:
        """Report requests that were cancelled for a newer one, and end those of them that were withdrawn."""
        for cancelled in accepted.cancelled:
            self._observers.request_cancelled(cancelled)
        for cancelled in accepted.withdrawn:
            self._endings.conclude_withdrawn(cancelled)

    def _log(self, request: Request) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        waiting, running = self._registry.load
        logger.info(
            "request %s added, owner %s, session %s, %s prompt tokens, waiting %d, running %d",
            request.id,
            request.owner or "-",
            ESCAPED(request.session or "-")[0].decode(),  # a client's text, which may contain line feeds
            f"{request.n_prompt_tokens:,}",
            waiting,
            running,
            extra={
                "request_id": request.id,
                "owner": request.owner or None,
                "session": request.session,
                "parent": request.parent,
                "prompt_tokens": request.n_prompt_tokens,
                "waiting": waiting,
                "running": running,
            },
        )
