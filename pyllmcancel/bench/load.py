"""The load of ``pyllmcancel bench cancel``: which requests are made, which of them are cut, and the record of them.

The semantics are those of AIPerf's request cancellation: each request is chosen independently, by its number and the
seed alone, so 10 % of 50 need not be 5. A request that is chosen at 10 % is also chosen at 30 %.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rich.progress import Progress

from pyllmcancel.bench.exchange import Exchange, Outcome
from pyllmcancel.bench.server_truth import Stop, cpu_seconds, stopped_after
from pyllmcancel.bench.workbench import Workbench

WARMUP = 2  # requests that are not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The load: `concurrency` clients, each with one request at a time, of which `percent` are to be cut.

    `delay` are the least and the most seconds from "fully sent" to the hang-up, evenly distributed; 0: at once.
    """

    requests: int = 50
    concurrency: int = 4
    percent: float = 10.0
    delay: tuple[float, float] = (0.5, 0.5)
    prompt_tokens: int = 200
    output_tokens: int = 60
    seed: int = 42


@dataclass(slots=True)
class Run:
    """The record of a load."""

    chosen: int  # requests that were to be cut
    began_at: float
    seconds: float = 0.0
    exchanges: list[Exchange] = field(default_factory=list)  # in the order of their beginnings, without the warm-up
    # By request id: when the server's process came to rest after a hang-up, if the request was alone.
    stops: dict[str, Stop] = field(default_factory=dict)
    cpu: float | None = None  # CPU seconds of the server's process during the load; None without a process id


def planned_cuts(requests: int, percent: float, delay: tuple[float, float], seed: int = 42) -> list[float | None]:
    """Return for each request the seconds from "fully sent" to its hang-up; None if it is not chosen."""
    # A random stream for each kind of draw, so that neither influences the other.
    chosen, delays = random.Random(f"{seed}: chosen"), random.Random(f"{seed}: delay")
    draws = [(chosen.random(), delays.random()) for _ in range(requests)]
    shortest, longest = delay
    return [shortest + (longest - shortest) * part if chance < percent / 100.0 else None for chance, part in draws]


async def run_closed_loop(requests: int, clients: int, make: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Run clients, each of which makes the request of the next number when its last one has ended, or was cut."""
    numbers = iter(range(requests))

    async def work() -> None:
        for number in numbers:
            await make(number)

    async with asyncio.TaskGroup() as group:
        for lane in range(clients):
            group.create_task(work(), name=f"client {lane}")


async def measure(bench: Workbench, options: LoadOptions, progress: Progress) -> Run:
    """Send the load. When this is cancelled, return what was measured until then, if there is anything."""
    cuts = planned_cuts(options.requests, options.percent, options.delay, options.seed)
    shown = progress.add_task("prompts", total=None)
    texts = [bench.prompt(options.prompt_tokens, f"{number}") for number in range(WARMUP + options.requests)]
    for text in texts[:WARMUP]:
        await bench.start(text, options.output_tokens).ended()
    await bench.settle()
    used = None if bench.pid is None else cpu_seconds(bench.pid)
    run = Run(sum(cut is not None for cut in cuts), began_at=time.monotonic())
    progress.update(shown, description="requests", total=options.requests)

    async def make(number: int) -> None:
        call = bench.start(texts[WARMUP + number], options.output_tokens, cut_after=cuts[number])
        run.exchanges.append(call.exchange)
        exchange = await call.ended()
        if bench.pid is not None and options.concurrency == 1 and exchange.outcome is Outcome.CANCELLED:
            assert exchange.ended_at is not None
            run.stops[exchange.ask.request_id] = await stopped_after(bench.pid, exchange.ended_at)
        progress.advance(shown)

    try:
        await run_closed_loop(options.requests, options.concurrency, make)
    except asyncio.CancelledError:  # SIGTERM, or Ctrl-C
        if not any(exchange.outcome for exchange in run.exchanges):
            raise
    run.seconds = time.monotonic() - run.began_at
    await bench.settle()
    if bench.pid is not None and used is not None:
        run.cpu = cpu_seconds(bench.pid) - used
    return run
