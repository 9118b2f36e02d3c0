"""The real work of a server's process, by Linux's account of its CPU time, for any server of any make.

A server may close a connection at once and compute for seconds more, so nothing that the server reports about itself is
used here.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

CPUCLOCK_SCHED = 2  # the kind of clock, in the low bits of its id; the inverted process id is above them
SAMPLE_EVERY = 0.001
LONGEST_WAIT = 120.0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, of all its threads, including ended ones; ProcessLookupError if there is
    no such process, ValueError on systems other than Linux.

    Linux's CPU clock of another process, exact to the nanosecond and read in half a microsecond. The files under /proc
    are less exact: ``schedstat`` forgets threads that have ended, ``stat`` counts in hundredths of a second.
    """
    if sys.platform != "linux":
        raise ValueError("the CPU time of another process can be read on Linux only")
    try:
        return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    except OSError:
        raise ProcessLookupError(f"there is no process {pid}") from None


@dataclass(frozen=True, slots=True)
class Stop:
    """The moment at which a process came to rest, after the requested one, and the CPU seconds used until then."""

    seconds: float
    cpu_seconds: float


def watch_until_quiet(
    pid: int,
    since: float,
    *,
    used_before: float | None = None,
    window: float = 0.05,
    at_most: float = 0.001,
    give_up: float = LONGEST_WAIT,
) -> Stop:
    """Wait until a process's threads stop using CPU; return when, after `since` (monotonic), and how much they used.
    TimeoutError if they still do `give_up` seconds after `since`.

    Quiet means: in the `window` seconds that follow, all threads together use at most `at_most` CPU seconds, and no
    thread waits for a CPU. The result is that window's beginning, and the CPU time used since `used_before` was read,
    by default since now. Blocks, so call it in a thread.
    """
    samples: list[tuple[float, float]] = []
    first = cpu_seconds(pid) if used_before is None else used_before
    while True:
        now = time.monotonic()
        samples.append((now, cpu_seconds(pid)))
        while now - samples[0][0] >= window:
            when, used = samples.pop(0)
            # On a busy machine a process that wants a CPU may get none for that long.
            if samples[-1][1] - used <= at_most and not is_runnable(pid):
                return Stop(max(0.0, when - since), used - first)
        if now - since > give_up:
            raise TimeoutError(f"process {pid} still computes after {give_up:.0f} s")
        time.sleep(SAMPLE_EVERY)


def is_runnable(pid: int) -> bool:
    """Return whether any thread of a process runs, or would if it got a CPU."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            # The name, in parentheses, may contain anything; the state follows it.
            state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended meanwhile
        if state == "R":
            return True
    return False


async def stopped_after(pid: int, since: float, *, give_up: float = LONGEST_WAIT) -> Stop:
    """As `watch_until_quiet`, without blocking the event loop."""
    used_before = cpu_seconds(pid)
    return await asyncio.to_thread(watch_until_quiet, pid, since, used_before=used_before, give_up=give_up)
