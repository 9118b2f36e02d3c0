"""The prefixes of slots, which clients that name slots save, restore and erase.

Only the engine thread may touch sequences: it does what is asked between two steps, when no request of the slot runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.engine.state_identity import state_identity
from pyllmcancel.errors import EngineClosedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyllmcancel._native import SwappedPrefix
    from pyllmcancel.engine.generation import Generation
    from pyllmcancel.scheduling.swap_space import Fetched

T = TypeVar("T")


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


class Slots:
    """An engine's slots, for other threads: `jobs` are those of the engine thread, which `wake` wakes.

    `copy`, `fill` and `erase` raise EngineClosedError if the engine is closed, or its thread has died.
    """

    def __init__(self, generation: Generation, jobs: Jobs, wake: Callable[[], object]) -> None:
        self._generation = generation
        self._scheduler = generation.scheduler
        self._jobs = jobs
        self._wake = wake

    def copy(self, owner: str, number: int) -> Future[Fetched | None]:
        """Copy the prefix of an owner's slot, as soon as no request of the slot runs; None if the slot is empty."""
        return self._ask(partial(self._scheduler.copy_slot, owner, number), owner, number)

    def fill(self, owner: str, number: int, prefix: Fetched) -> Future[bool]:
        """Have an owner's slot hold a copied prefix; False if there is no room for that now."""
        return self._ask(partial(self._scheduler.fill_slot, owner, number, prefix), owner, number)

    def erase(self, owner: str, number: int) -> Future[int]:
        """Forget the prefix of an owner's slot, wherever it is kept; returns its number of tokens."""
        return self._ask(partial(self._scheduler.erase_slot, owner, number), owner, number)

    def _ask(self, call: Callable[[], T], owner: str, number: int) -> Future[T]:
        job = Job(call, lambda: not self._scheduler.slot_is_busy(owner, number))
        self._jobs.add(job)
        self._wake()
        return job.result

    def state_identity(self, known: Path) -> str:
        """Return the identity of everything that a state in a file depends on. Reads whole files that are not `known`,
        in a file, yet.
        """
        generation = self._generation
        return state_identity(generation.core, generation.facts.config, generation.native, known)

    def blank_prefix(
        self, tokens: Sequence[int], least: int, parts: Sequence[tuple[int, int]]
    ) -> tuple[SwappedPrefix, list[memoryview]] | None:
        """Make a prefix whose states are to be read from a file; see `pyllmcancel._native.SwappedPrefix.blank`."""
        made: tuple[SwappedPrefix, list[memoryview]] | None
        made = self._generation.native.SwappedPrefix.blank(tokens, least, parts)
        return made
