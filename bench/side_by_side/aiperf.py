"""NVIDIA AIPerf 0.13's request-cancellation mode: the runs of its documentation page, and one without a cancel.

The page's runs are there twice: with a quarter of its lengths, which every side-by-side run measures, and as written.

AIPerf is a program of its own, with 1.2 GB of packages (``python -m bench.prepare aiperf``), run without a network.
Outcomes are counted from its rows of single requests: its own summary counts the requests that it cut as errors. Its
figures of speed hold complete answers only.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.programs import ROOT, find_program
from bench.side_by_side.aiperf_tokenizer import write_tokenizer
from bench.side_by_side.measurement import Figures, Measurement, Subject

FOLDER = ROOT / "build" / "aiperf-runs"
LONGEST_SECONDS = 900.0
SECONDS_TO_EXPORT = 30.0
# With either of these set, to anything, AIPerf looks the tokenizer's path up as the name of a repository, and fails.
OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}
FIGURES = {
    "ttft_p50_ms": ("time_to_first_token", "p50"),
    "ttft_p99_ms": ("time_to_first_token", "p99"),
    "latency_p50_ms": ("request_latency", "p50"),
    "tokens_per_second": ("output_token_throughput", "avg"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of AIPerf."""

    name: str
    title: str
    rate: float  # per cent of the requests whose client hangs up; 0: none
    delay: float  # seconds from "fully sent" until it does
    concurrency: int
    requests: int
    prompt: tuple[int, int]  # tokens of a request, and of its answer: mean and standard deviation
    answer: tuple[int, int]
    warmup: int = 0  # requests that come before, and are neither cut nor counted
    ctx_size: int = 8192  # cells of the server, for eight slots


RUNS = (
    Run("none", "no cancellation", 0.0, 0.0, 8, 24, (100, 0), (40, 0)),
    Run("10-percent", "10 % after 0.5 s", 10.0, 0.5, 8, 50, (200, 20), (60, 6), warmup=5),
    Run("50-percent", "50 % after 1.0 s", 50.0, 1.0, 10, 40, (300, 0), (150, 0)),
    Run("30-percent", "30 % at once", 30.0, 0.0, 15, 60, (125, 0), (25, 0)),
)
_10_PERCENT, _50_PERCENT, _30_PERCENT = RUNS[1:]
PAGE_RUNS = tuple(
    replace(run, name=f"{run.name}-as-written", title=f"{run.title}, {prompt[0]} and {answer[0]} tokens",
            prompt=prompt, answer=answer, ctx_size=16384)
    for run, prompt, answer in (
        (_10_PERCENT, (800, 80), (400, 40)), (_50_PERCENT, (1200, 0), (600, 0)), (_30_PERCENT, (500, 0), (100, 0)),
    )
)  # fmt: skip


async def measure(run: Run, subject: Subject) -> Figures:
    """One of NVIDIA AIPerf's runs with request cancellation; its clients keep their connections."""
    find_aiperf()
    settings = subject.running.settings
    run = replace(run, requests=subject.times(run.requests, 4), warmup=subject.times(run.warmup, 0))
    out = FOLDER / f"{run.name}.{subject.running.peer.name}"
    tokenizer = write_tokenizer(settings.model, FOLDER / f"{settings.model.stem}.tokenizer")
    options = arguments(run, url=settings.url, model=subject.client.target.model, tokenizer=tokenizer, out=out)
    await asyncio.to_thread(run_aiperf, options, out)
    figures = summarise(out)
    if not figures["requests"]:
        raise RuntimeError(f"AIPerf made no requests: see {out / 'console.log'}")
    return {"run": asdict(run)} | figures


def find_aiperf() -> str:
    """Find the program; NotAvailableError if it is not there."""
    return find_program("AIPERF", ROOT / "build" / "aiperf" / "bin" / "aiperf")


def arguments(run: Run, *, url: str, model: str, tokenizer: Path, out: Path) -> list[str]:
    """AIPerf's options for a run. Tokens are counted by the server (its ``usage``), which alone knows them for sure."""
    asked = {
        "--model": model,
        "--url": url,
        "--endpoint-type": "chat",
        "--tokenizer": tokenizer,
        "--isl": run.prompt[0],
        "--isl-stddev": run.prompt[1],
        "--osl": run.answer[0],
        "--osl-stddev": run.answer[1],
        "--extra-inputs": "ignore_eos:true",
        "--concurrency": run.concurrency,
        # How often a second it looks for a free slot: its own closed loop spins on a core while all are taken.
        "--request-rate": 100,
        "--arrival-pattern": "constant",
        "--request-count": run.requests,
        "--request-timeout-seconds": 300,
        "--random-seed": 42,
        "--workers-max": 1,
        "--record-processors": 1,
        "--ui": "none",
        "--export-level": "records",
        "--output-artifact-dir": out.resolve(),
    }
    if run.warmup:
        asked["--warmup-request-count"] = run.warmup
    if run.rate:
        asked |= {"--request-cancellation-rate": run.rate, "--request-cancellation-delay": run.delay}
    switches = ["--streaming", "--use-server-token-count", "--export-http-trace"]
    probes = ["--no-gpu-telemetry", "--no-server-metrics"]
    return ["profile", *(str(part) for pair in asked.items() for part in pair), *switches, *probes]


def run_aiperf(options: list[str], out: Path) -> int:
    """Run it; its status. What it writes is in `out`, which is emptied before: AIPerf would mix two runs' files."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # A temporary folder of its own, since AIPerf leaves some behind; a short one, for the sake of Unix sockets' names.
    with tempfile.TemporaryDirectory(prefix="aip") as folder, (out / "console.log").open("wb") as console:
        kept = {name: value for name, value in os.environ.items() if name not in OFFLINE_SWITCHES}
        environment = kept | QUIET | {"TMPDIR": folder, "HF_HOME": str(Path(folder) / "hf")}
        process = subprocess.Popen(
            [find_aiperf(), *options], stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # then it exports what it has
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_EXPORT)
            return -1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what is left of its own group, which it normally empties
            process.wait()


def summarise(folder: Path) -> dict[str, Any]:
    """Outcomes and figures of one run. Figures are None where AIPerf gave none, as when no request was answered."""
    summary = json.loads(_read(folder / "profile_export_aiperf.json") or "{}")
    figures = {name: (summary.get(tag) or {}).get(kind) for name, (tag, kind) in FIGURES.items()}
    rows = [json.loads(line) for line in _read(folder / "profile_export.jsonl").splitlines() if line.strip()]
    return outcomes(rows) | figures


def outcomes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the measured requests ended. An error is one of a request that AIPerf did not cut itself."""
    measured = [row for row in rows if row["metadata"]["benchmark_phase"] == "profiling"]
    cut = [row for row in measured if row["metadata"]["was_cancelled"]]
    failed = [row for row in measured if row.get("error") and not row["metadata"]["was_cancelled"]]
    kinds = Counter(f"{row['error'].get('code') or ''} {row['error'].get('type')}".strip() for row in failed)
    return {
        "requests": len(measured),
        "ok": len(measured) - len(cut) - len(failed),
        "cancelled": len(cut),
        "errors": len(failed),
        "error_kinds": dict(kinds),
        "warmup_errors": sum(bool(row.get("error")) for row in rows if row not in measured),
    }


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


MEASUREMENTS = tuple(
    Measurement(name=f"aiperf-{run.name}", parallel=8, ctx_size=run.ctx_size, rounds=1, measure=partial(measure, run))
    for run in (*RUNS, *PAGE_RUNS)
)
