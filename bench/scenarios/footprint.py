"""A server's resources: in its own books, and as the operating system sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from bench.scenarios.harness import Server
from bench.scenarios.report import Report

GAUGES = ("requests_waiting", "requests_running", "requests_cancelling", "sessions_live", "slots_used", "cells_used")
PAGE_KIB = 4
SETTLE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Footprint:
    """Held at one moment; `gauges` are the server's own, memory is in MiB."""

    gauges: dict[str, float]
    asyncio_tasks: float
    descriptors: int
    threads: int
    resident: float


async def footprint(server: Server) -> Footprint:
    """Return the footprint of an idle server, after a moment in which it closes the connections that clients have
    closed.
    """
    await server.until_idle()
    await asyncio.sleep(SETTLE_SECONDS)
    metrics = await server.metrics()
    await asyncio.sleep(SETTLE_SECONDS)
    process = Path(f"/proc/{server.pid}")
    return Footprint(
        gauges={name: metrics[name] for name in GAUGES},
        asyncio_tasks=metrics["asyncio_tasks"],
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
        resident=resident_mib(server.pid),
    )


def resident_mib(pid: int) -> float:
    """A process's memory that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KIB / 1024


def judge_footprints(
    report: Report, before: Footprint, after: Footprint, allowed_mib: float | None, *, workers: int = 0
) -> None:
    """Everything is back at its start, but for `workers` that a thread pool may have started meanwhile.

    With None but for what a short run does not show, threads and memory.
    """
    names = [*GAUGES, "asyncio tasks", "file descriptors", "threads", "memory (MiB)"]

    def values(held: Footprint) -> list[float]:
        counts = [held.asyncio_tasks, held.descriptors, held.threads, held.resident]
        return [*held.gauges.values(), *counts]

    rows = list(zip(names, values(before), values(after), strict=True))
    report.table(("held when idle", "before", "after"), [(name, f"{a:g}", f"{b:g}") for name, a, b in rows])
    report.check("no request, session, slot or cell is held", not any(after.gauges.values()), after.gauges)
    report.check("asyncio tasks are back", after.asyncio_tasks <= before.asyncio_tasks)
    report.check("file descriptors are back", after.descriptors <= before.descriptors)
    if allowed_mib is None:
        return
    report.check("threads are back", after.threads <= before.threads + workers)
    grown = after.resident - before.resident
    report.check(f"memory has grown by less than {allowed_mib:g} MiB", grown < allowed_mib, f"{grown:.1f} MiB")
