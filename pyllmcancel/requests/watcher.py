"""The watcher: it cancels requests whose deadline has passed, whose client has left, or whose stream was dropped.

A thread of its own waits for deadlines and dropped streams. Sockets are looked at by the engine thread, right before
each step. The event loop shares the GIL and the cores with the computation, so it may notice a closed connection some
milliseconds late. By then the next step would have begun, and a step that other requests share may not be aborted.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.requests.request import Request

logger = logging.getLogger("pyllmcancel.engine")

LONGEST_WAIT = 3600.0  # seconds; a client may set a deadline longer than a lock can wait for
FEW = 64  # the number of deadlines that are kept without looking for those of ended requests
LEAST_WAIT = 0.05  # seconds between two looks for a token


class Due(NamedTuple):
    """The time of a look at a request, in monotonic seconds: for a deadline of `seconds`, or for a dropped stream."""

    at: float
    number: int
    request: weakref.ref[Request]
    deadline: Deadline | None = None
    seconds: float = 0.0


class Watcher:
    """Cancels requests: by `cancel(request, reason)` or, for a deadline, `cancel(request, DEADLINE, deadline)`.

    `cancel` is called in the watcher's thread, or in the one that calls `look`.

    Its inbox is a SimpleQueue because `put` of that class may be called from a destructor, which may run anywhere, even
    in a thread that holds the engine's lock. The last entry is no `Due`, but is called. The heap of deadlines is
    touched by its own thread only. After `drop_engine` the thread calls `shut_down`.
    """

    def __init__(self, cancel: Callable[..., object], shut_down: Callable[[], object] = lambda: None) -> None:
        self._cancel = cancel
        self._shut_down = shut_down
        self._inbox: queue.SimpleQueue[Due | Callable[[], object]] = queue.SimpleQueue()
        self._order = itertools.count()
        self._pending: list[Due] = []  # a heap
        self._most = FEW
        self._thread = threading.Thread(target=self._run, name="pyllmcancel-watcher", daemon=True)
        self._thread.start()

    def at_deadline(self, request: Request, at: float, deadline: Deadline = Deadline.ALL) -> None:
        """Cancel `request` at the monotonic time `at`, in seconds, if this deadline has passed then.

        `Deadline.IDLE` is checked again after each token; its length is the time from the arrival until `at`.
        """
        seconds = at - request.arrived_at
        self._inbox.put(Due(at, next(self._order), weakref.ref(request), deadline, seconds))

    def look(self, requests: Iterable[Request]) -> None:
        """Cancel requests whose client has left, without waiting, not even for the GIL. For the engine thread."""
        for request in requests:
            if request.client is not None and request.client.has_left():
                self._cancel(request, CancelReason.DISCONNECT)

    def dropped(self, request: Request) -> None:
        """Cancel `request`, whose stream was dropped; may be called from a destructor."""
        self._inbox.put(Due(0.0, next(self._order), weakref.ref(request)))

    def close(self) -> None:
        self._inbox.put(lambda: None)
        self._thread.join()

    def drop_engine(self) -> None:
        """Note that the engine is gone: shut down what is left of it, and end. May be called from a destructor."""
        self._inbox.put(self._shut_down)

    def _run(self) -> None:
        while True:
            wait = self._pending[0][0] - time.monotonic() if self._pending else None
            if wait is not None and wait <= 0:
                self._cancel_due(heapq.heappop(self._pending))
                continue
            try:
                message = self._inbox.get(timeout=None if wait is None else min(wait, LONGEST_WAIT))
            except queue.Empty:
                continue
            if not isinstance(message, Due):
                message()
                return
            self._note(message)

    def _cancel_due(self, due: Due) -> None:
        request = due.request()
        if request is None:
            return
        try:
            if due.deadline is None:
                self._cancel(request, CancelReason.DISCONNECT)
            elif (later := later_look(request, due)) is None:
                self._cancel(request, CancelReason.DEADLINE, due.deadline)
            elif later < math.inf:
                self._note(due._replace(at=later))
        except Exception:
            # The deadlines of the other requests are kept all the same.
            logger.exception("request %s could not be cancelled", request.id, extra={"request_id": request.id})

    def _note(self, due: Due) -> None:
        """Add `due`. Deadlines of ended requests are removed when they may be half of all."""
        heapq.heappush(self._pending, due)
        if len(self._pending) > self._most:
            self._pending = [one for one in self._pending if is_live(one.request())]
            heapq.heapify(self._pending)
            self._most = FEW + 2 * len(self._pending)


def later_look(request: Request, due: Due) -> float | None:
    """Return when to look at a request again; None if its deadline has passed, infinite if that passes never."""
    if due.deadline is Deadline.QUEUE and request.admitted_at is not None:
        return math.inf
    if due.deadline is not Deadline.IDLE:
        return None
    if not is_live(request):
        return math.inf
    now, last = time.monotonic(), request.last_token_at
    later = now + max(due.seconds, LEAST_WAIT) if last is None else last + due.seconds
    return None if later <= now else max(later, now + LEAST_WAIT)


def is_live(request: Request | None) -> bool:
    return request is not None and not request.ended.done()
