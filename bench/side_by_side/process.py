"""A server's memory, and the times until it is ready, and until it ends at SIGTERM while an answer streams."""

from __future__ import annotations

import asyncio
import mmap
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from bench.peers.running import free_port, running
from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Outcome

PARALLEL, CTX_SIZE = 4, 4096
PROMPT, ANSWER = 200, 8
ENDLESS = 2000  # tokens of an answer
LONGEST_WAIT = 60.0  # for the end
STARTS = 3
# More than a server of this model allocates.
BYTES_TOUCHED = 3 << 29
# Fields of /proc/PID/status. VmRSS counts the pages of the mapped model as well as allocated memory.
FIELDS = {"resident": "VmRSS", "peak": "VmHWM", "allocated": "RssAnon", "mapped": "RssFile"}


async def measure_resources(subject: Subject) -> Figures:
    """Memory when ready and after each slot has been used, and the time to be ready of further starts."""
    when_ready = memory(subject.pid)
    prompts = [await subject.prompt(PROMPT) for _ in range(PARALLEL)]
    await asyncio.gather(*(subject.start(prompt, ANSWER).ended() for prompt in prompts))
    await subject.settle()
    starts = [await asyncio.to_thread(seconds_to_ready, subject) for _ in range(STARTS)]
    return {"when_ready": when_ready, "after_use": memory(subject.pid), "seconds_to_ready": starts}


def memory(pid: int) -> dict[str, float]:
    """MiB of a process, by `FIELDS`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[field].split()[0]) / 1024 for name, field in FIELDS.items()}


def seconds_to_ready(subject: Subject) -> float:
    """Measure another server of the same peer; the first one is at rest meanwhile."""
    settings = replace(subject.running.settings, port=free_port())
    touch_memory()
    with running(subject.running.peer, settings) as another:
        return another.seconds_to_ready


def touch_memory() -> None:
    """Have the host of a virtual machine provide memory.

    Many take it back some seconds after it was freed, and need 3 ms a MiB to provide it again: a start would take one
    second or three, according to what ran before it.
    """
    with mmap.mmap(-1, BYTES_TOUCHED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        for at in range(0, BYTES_TOUCHED, mmap.PAGESIZE):
            pages[at] = 1


async def measure_shutdown(subject: Subject) -> Figures:
    """From SIGTERM until the process is gone, and the end of an endless answer as its client gets it."""
    call = await subject.begin(16, ENDLESS)
    process = subject.running.process
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.to_thread(process.wait, LONGEST_WAIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        seconds = None
    else:
        seconds = time.monotonic() - began
    exchange = await call.ended()
    return {
        "seconds_to_exit": seconds,
        "gave_up_after": LONGEST_WAIT if seconds is None else None,
        "exit_status": process.returncode,
        "looked_complete": exchange.outcome is Outcome.OK,
        "client_was_told": exchange.error or exchange.finish_reason,
    }


MEASUREMENTS = (
    Measurement(name="resources", parallel=PARALLEL, ctx_size=CTX_SIZE, measure=measure_resources),
    Measurement(name="shutdown", ctx_size=4 * 2304, measure=measure_shutdown, rounds=1),
)
