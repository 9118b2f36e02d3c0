"""AIPerf's own cancellation runs, each a measurement."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from bench.aiperf.command import find_aiperf, run_aiperf
from bench.aiperf.page import RUNS, Run
from bench.aiperf.summary import summarise
from bench.aiperf.tokenizer import write_tokenizer
from bench.peers.protocol import ROOT
from bench.side_by_side.measurement import Figures, Measurement, Subject

FOLDER = ROOT / "build" / "aiperf-runs"
PARALLEL, CTX_SIZE = 8, 8192


async def measure(run: Run, subject: Subject) -> Figures:
    """One run; the clients keep their connections, as AIPerf's do."""
    find_aiperf()
    settings, peer = subject.running.settings, subject.running.peer
    run = replace(run, requests=subject.times(run.requests, 4), warmup=subject.times(run.warmup, 0))
    out = FOLDER / f"{run.name}.{peer.name}"
    await asyncio.to_thread(
        run_aiperf,
        run,
        url=settings.url,
        model=subject.client.target.model,
        tokenizer=tokenizer_of(settings.model),
        out=out,
    )
    figures = summarise(out)
    if not figures["requests"]:
        raise RuntimeError(f"AIPerf made no requests: see {out / 'console.log'}")
    return {"run": asdict(run)} | figures


def tokenizer_of(model: Path) -> Path:
    return write_tokenizer(model, FOLDER / f"{model.stem}.tokenizer")


MEASUREMENTS = tuple(
    Measurement(
        name=f"aiperf-{run.name}", parallel=PARALLEL, ctx_size=CTX_SIZE, rounds=1, measure=partial(measure, run)
    )
    for run in RUNS.values()
)
