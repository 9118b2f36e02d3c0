"""Calls that other threads ask the engine thread for: only that thread may touch sequences."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pyllmcancel.errors import EngineClosedError


@dataclass(slots=True, eq=False)
class Job:
    """A call that is made between two steps, as soon as `is_ready` returns True."""

    call: Callable[[], Any]
    is_ready: Callable[[], bool]
    result: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(self.call())
        except Exception as error:
            self.result.set_exception(error)


class Jobs:
    """The jobs that wait. Each gets a result, or EngineClosedError.

    May be used from any thread, but for `run_ready`, which the engine thread calls.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = deque[Job]()
        self._closed = False

    def add(self, job: Job) -> None:
        """Have a job run; EngineClosedError if nothing runs any more."""
        with self._lock:
            if self._closed:
                raise EngineClosedError("the engine is closed")
            self._waiting.append(job)

    def run_ready(self) -> None:
        with self._lock:
            waiting = tuple(self._waiting)
        for job in waiting:
            if job.result.cancelled() or job.is_ready():
                with self._lock:
                    self._waiting.remove(job)
                job.run()

    def close(self) -> None:
        """Fail what waits. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
        for job in left:
            if job.result.set_running_or_notify_cancel():
                job.result.set_exception(EngineClosedError("the engine was closed"))
