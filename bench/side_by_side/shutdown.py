"""SIGTERM while an answer streams: how long until the process is gone, and what the client is told."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Outcome

PROMPT, ANSWER = 16, 2000
LONGEST_WAIT = 60.0


async def measure(subject: Subject) -> Figures:
    """The answer is so long that nobody could wait for its end."""
    call = await subject.begin(PROMPT, ANSWER)
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


MEASUREMENTS = (Measurement(name="shutdown", ctx_size=4 * 2304, measure=measure, rounds=1),)
