"""The prefixes of slots, which clients that name slots save, restore and erase.

Only the engine thread may touch sequences: it does what is asked between two steps, when no request of the slot runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyllmcancel.engine.jobs import Job
from pyllmcancel.engine.state_identity import state_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from pyllmcancel._native import SwappedPrefix
    from pyllmcancel.engine.generation import Generation
    from pyllmcancel.engine.jobs import Jobs
    from pyllmcancel.scheduling.swap_space import Fetched

T = TypeVar("T")


class Slots:
    """An engine's slots, for other threads.

    `copy`, `fill` and `erase` raise EngineClosedError if the engine is closed, or its thread has died.

    Parameters
    ----------
    jobs
        Those of the engine thread.
    wake
        Wakes the engine thread.
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
