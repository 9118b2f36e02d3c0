"""The arrival of a request, its preparation, and its acceptance: reported, logged, given its deadlines."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyllmcancel.cancellation import Deadline
from pyllmcancel.events import Ending, FinishReason, RequestStatus, Usage
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import Observers
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Names, Request
from pyllmcancel.requests.tables import Accepted
from pyllmcancel.requests.watcher import Watcher

logger = logging.getLogger("pyllmcancel.engine")

REFUSED = Ending(FinishReason.ERROR, Usage(), RequestStatus.PREPARING, error="the request was refused")
ESCAPED = codecs.getencoder("unicode_escape")  # looked up here: Python imports a codec at its first use


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Lists and accepts requests, from any thread.

    `deadlines` are the seconds for requests that name none, except idle ones; None: no deadline. The `watcher` is None
    in a front, where requests are not accepted by this.
    """

    _registry: Registry
    _endings: Endings
    _watcher: Watcher | None
    _observers: Observers
    _deadlines: Mapping[Deadline, float | None]

    def arrive(self, request: Request) -> None:
        """List a request to prepare, or change nothing: InvalidRequestError, QueueFullError or EngineClosedError."""
        end_cancelled(self._observers, self._endings, self._registry.arrive(request))

    def name(self, request: Request, names: Names) -> None:
        """Note the groups of a request in preparation; raises as `arrive`, or RequestCancelled."""
        end_cancelled(self._observers, self._endings, self._registry.name(request, names))

    def end_work(self, request: Request) -> None:
        """Note that the work for a request has stopped, and end the request if it was cancelled meanwhile."""
        if self._registry.end_work(request):
            self._endings.conclude_withdrawn(request)

    def refuse(self, request: Request) -> bool:
        """Drop a request in preparation, which leaves no trace. Return False if it is not to be dropped: it is
        accepted, or cancelled, or some work for it is in progress.
        """
        refused = self._registry.refuse(request)
        if refused:
            request.status = RequestStatus.FINISHED
            request.ended.set_result(REFUSED)
        return refused

    def accept(self, request: Request, *, again: bool = False) -> None:
        """Have a request wait for its turn; QueueFullError, EngineClosedError or RequestCancelled, and nothing is
        changed, if it cannot. One that another server has accepted before, `again`, has no limit of its wait.
        """
        accepted = self._registry.accept(request)
        self._observers.request_added(request)
        self._log(request)
        end_cancelled(self._observers, self._endings, accepted)
        for deadline, usual in self._deadlines.items():
            seconds: float | None = getattr(request.params, deadline)
            seconds = usual if seconds is None and not request.is_idle else seconds
            if seconds is not None and self._watcher is not None and not (again and deadline is Deadline.QUEUE):
                self._watcher.at_deadline(request, request.arrived_at + seconds, deadline)

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


def end_cancelled(observers: Observers, endings: Endings, accepted: Accepted) -> None:
    """Report requests that were cancelled, and end those of them that were withdrawn."""
    for cancelled in accepted.cancelled:
        observers.request_cancelled(cancelled)
    for cancelled in accepted.withdrawn:
        endings.conclude_withdrawn(cancelled)
