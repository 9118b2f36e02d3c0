"""One thread that cancels what is late, and what its reader has dropped.

Its inbox is a SimpleQueue because `put` of that class may be called from a destructor, which may run anywhere, even in
a thread that holds the engine's lock. Everything else here is touched by the one thread only.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllmcancel.cancellation import CancelReason

if TYPE_CHECKING:
    from pyllmcancel.request import Request

LONGEST_WAIT = 3600.0  # seconds; a lock cannot wait for ever and a day, a client may ask for it

Appointment = tuple[float, int, "weakref.ref[Request]", CancelReason]


class Reaper:
    """Calls `cancel(request, reason)` when a request's time is up, unless the request is gone by then."""

    def __init__(self, cancel: Callable[[Request, CancelReason], object]) -> None:
        self._cancel = cancel
        self._inbox: queue.SimpleQueue[Appointment | None] = queue.SimpleQueue()
        self._order = itertools.count()
        self._appointments: list[Appointment] = []
        self._thread = threading.Thread(target=self._run, name="pyllmcancel-reaper", daemon=True)
        self._thread.start()

    def at_deadline(self, request: Request, at: float) -> None:
        """Cancel `request` at the monotonic time `at`, in seconds."""
        self._inbox.put((at, next(self._order), weakref.ref(request), CancelReason.DEADLINE))

    def abandoned(self, request: Request) -> None:
        """Cancel `request` now; may be called from a destructor."""
        self._inbox.put((0.0, next(self._order), weakref.ref(request), CancelReason.DISCONNECT))

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            due = self._appointments[0][0] - time.monotonic() if self._appointments else None
            if due is not None and due <= 0:
                _, _, reference, reason = heapq.heappop(self._appointments)
                request = reference()
                if request is not None:
                    self._cancel(request, reason)
                continue
            try:
                appointment = self._inbox.get(timeout=None if due is None else min(due, LONGEST_WAIT))
            except queue.Empty:
                continue
            if appointment is None:
                return
            heapq.heappush(self._appointments, appointment)
