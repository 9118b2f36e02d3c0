"""The storm for --seconds, with a curve of the server's memory."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from bench.scenarios.footprint import footprint, judge_footprints, resident_mib
from bench.scenarios.harness import Bench
from bench.scenarios.report import Report
from bench.scenarios.storm.storm import CLIENTS, SETTINGS, WORKERS, Setting, Storm
from bench.scenarios.storm.verdict import judge, judge_metrics, tabulate
from pyllmcancel.bench.plots import new_figure, save

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bench.scenarios.storm.stage import Visit

WAVE = 400  # requests; after each the server is idle for a moment, and looked at
WARM_UP = 0.15  # of the time
ALLOWED_MIB = 32.0  # what idle prefixes may take
Sample = tuple[float, float]  # seconds, MiB


async def run(bench: Bench) -> Report:
    """The storm for --seconds: nothing is left behind, and the server's memory does not grow (curve with --plots)."""
    report = Report("soak")
    setting = SETTINGS[0]
    samples = await soak(bench, report, setting)
    if bench.plots is not None:
        draw(samples, bench.plots)
    return report


async def soak(bench: Bench, report: Report, setting: Setting) -> list[Sample]:
    """Storm one server until the time is over; its memory by the time."""
    visits: list[Visit] = []
    async with bench.server(*setting.options) as server, sampled(server.pid) as samples:
        storm = Storm(server, setting, bench.seed)
        await storm.learn()
        began = time.monotonic()
        before = None
        n_waves = 0
        while time.monotonic() - began < bench.seconds:
            visits += await storm.rage(WAVE, CLIENTS)
            n_waves += 1
            if before is None and time.monotonic() - began > WARM_UP * bench.seconds:
                before = await footprint(server)
        after = await footprint(server)
        seconds = time.monotonic() - began
        report.figure("soak", f"{len(visits):,} requests in {n_waves} waves and {seconds:,.0f} s")
        tabulate(report, visits, server.log, setting.name)
        judge(report, visits, server, setting.name)
        await judge_metrics(report, server, setting.name)
        judge_footprints(report, before or after, after, ALLOWED_MIB, workers=WORKERS)
    return samples


@asynccontextmanager
async def sampled(pid: int, every: float = 1.0) -> AsyncIterator[list[Sample]]:
    """A process's resident memory while the block runs."""
    samples: list[Sample] = []
    began = time.monotonic()

    async def sample() -> None:
        while True:
            samples.append((time.monotonic() - began, resident_mib(pid)))
            await asyncio.sleep(every)

    sampling = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling


def draw(samples: list[Sample], folder: Path) -> None:
    figure, axes = new_figure("Resident memory of the server in the soak", height=3.5)
    axes.plot([seconds / 60 for seconds, _ in samples], [mib for _, mib in samples], linewidth=1.2)
    axes.set_xlabel("minutes")
    axes.set_ylabel("MiB")
    axes.set_ylim(bottom=0.0)
    save(figure, folder, "soak-memory")
