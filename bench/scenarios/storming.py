"""Twenty thousand requests from 64 clients, half of them cut, in every way and on every endpoint.

Three servers are loaded: divided cells, unified cells, embeddings. On each, every question is first answered alone,
then in company without cancels, then in the storm. A request that is not cut gets the same answer each time. The second
part separates the effect of company from that of a cancel.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from bench.report.plots import finish, new_figure, save
from bench.scenarios.footprint import footprint, judge_footprints, resident_mib
from bench.scenarios.harness import Bench
from bench.scenarios.report import Report
from bench.scenarios.storm.exact import write_exact_copy
from bench.scenarios.storm.stage import Visit
from bench.scenarios.storm.storm import CLIENTS, SETTINGS, WORKERS, Setting, Storm
from bench.scenarios.storm.verdict import judge, judge_metrics, shown, tabulate

RUNS = 20_000
CALM = 0.05  # of a server's requests: those without a cancel beside them
WARM_UP = 0.5  # of the others: until every table is full, every cell was touched, and threads have their arenas
ALLOWED_MIB = 32.0  # what idle prefixes may take
FULL = 1000  # requests after which a server has everything that it keeps
WAVE = 400  # requests of a soak; after each the server is idle for a moment, and looked at
SOAK_WARM_UP = 0.15  # of the time
Sample = tuple[float, float]  # seconds, MiB


async def run(bench: Bench) -> Report:
    """20,000 requests, 64 clients, every way to leave, every endpoint: one ending each, the right answers."""
    report = Report("storm")
    with tempfile.TemporaryDirectory() as folder:
        exact = replace(bench, model=write_exact_copy(bench.model, Path(folder) / bench.model.name))
        for setting in SETTINGS:
            n_requests = int((bench.runs or RUNS) * setting.share)
            allowed_mib = ALLOWED_MIB if n_requests * WARM_UP >= FULL else None
            await storm(exact if setting.exact else bench, report, setting, n_requests, allowed_mib=allowed_mib)
    return report


async def storm(
    bench: Bench,
    report: Report,
    setting: Setting,
    n_requests: int,
    *,
    clients: int = CLIENTS,
    allowed_mib: float | None = ALLOWED_MIB,
) -> None:
    """Storm one server with `n_requests`, those of the calm part not counted."""
    name = setting.name
    async with bench.server(*setting.options) as server:
        storm = Storm(server, setting, bench.seed)
        n_questions = await storm.learn()
        calm = await storm.calm(max(2 * clients, int(n_requests * CALM)), clients)
        differing = [fault for visit in calm for fault in visit.faults]
        report.check(f"{name}: company alone changes no answer", not differing, shown(differing))
        visits = await storm.rage(int(n_requests * WARM_UP), clients)
        before = await footprint(server)
        began = time.monotonic()
        visits += await storm.rage(n_requests - len(visits), clients)
        seconds = time.monotonic() - began
        after = await footprint(server)
        report.figure(f"{name}: requests", f"{len(visits):,}, and {n_questions} alone, {len(calm):,} in calm company")
        rate = (n_requests * (1 - WARM_UP)) / seconds
        report.figure(f"{name}: seconds", f"{seconds:.0f} for the later half, {rate:.0f} requests a second")
        tabulate(report, visits, server.log, name)
        judge(report, [*calm, *visits], server, name)
        await judge_metrics(report, server, name)
        judge_footprints(report, before, after, allowed_mib, workers=WORKERS)
    report.check(f"{name}: SIGTERM ended the server in time", server.process.returncode is not None)


async def run_soak(bench: Bench) -> Report:
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
            if before is None and time.monotonic() - began > SOAK_WARM_UP * bench.seconds:
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
    axes.set_xlabel("minutes since the soak's begin")
    axes.set_ylabel("resident memory, MiB")
    axes.set_ylim(bottom=0.0)
    finish(figure, axes, "Resident memory: what of the server's process lies in the machine's memory.")
    save(figure, folder, "soak-memory")
