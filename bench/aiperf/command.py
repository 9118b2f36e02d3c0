"""AIPerf as a process: its command line, an environment without network, a time limit, and what it cost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.aiperf.page import Run
from bench.peers.protocol import ROOT, find_program

LONGEST_SECONDS = 900.0
SECONDS_TO_EXPORT = 30.0
REQUEST_TIMEOUT = 300
SEED = 42
# Free slots are looked for so often a second. AIPerf's own closed loop spins on a core for as long as all are taken.
PACE = 100
# With either of these set, to anything, AIPerf looks the tokenizer's path up as the name of a repository, and fails.
OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
QUIET = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run of AIPerf cost; `status` is that of the process, -1 when it was ended for taking too long."""

    status: int
    wall_seconds: float
    cpu_seconds: float


def find_aiperf() -> str:
    """Find the program; NotAvailableError if it is not there."""
    return find_program("AIPERF", ROOT / "build" / "aiperf" / "bin" / "aiperf")


def arguments(run: Run, *, url: str, model: str, tokenizer: Path, out: Path) -> list[str]:
    """AIPerf's options for a run.

    Tokens are counted by the server (its ``usage``); the only one who knows the model's tokens for sure.
    """
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
        "--request-rate": PACE,
        "--arrival-pattern": "constant",
        "--request-count": run.requests,
        "--request-timeout-seconds": REQUEST_TIMEOUT,
        "--random-seed": SEED,
        "--workers-max": 1,
        "--record-processors": 1,
        "--ui": "none",
        "--export-level": "records",
        "--output-artifact-dir": out,
    }
    if run.warmup:
        asked["--warmup-request-count"] = run.warmup
    if run.rate:
        asked |= {"--request-cancellation-rate": run.rate, "--request-cancellation-delay": run.delay}
    switches = ["--streaming", "--use-server-token-count", "--export-http-trace"]
    probes = ["--no-gpu-telemetry", "--no-server-metrics"]
    return ["profile", *(str(part) for pair in asked.items() for part in pair), *switches, *probes]


def run_aiperf(run: Run, *, url: str, model: str, tokenizer: Path, out: Path) -> Cost:
    """Run it; what it writes is in `out`, which is emptied before: AIPerf would mix two runs' files."""
    program = find_aiperf()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    out = out.resolve()
    # A temporary folder of its own, since AIPerf leaves some behind; a short one, for the sake of Unix sockets' names.
    with tempfile.TemporaryDirectory(prefix="aip") as folder, (out / "console.log").open("wb") as console:
        command = [program, *arguments(run, url=url, model=model, tokenizer=tokenizer, out=out)]
        began, used = time.monotonic(), _children_cpu()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=_environment(folder),
            start_new_session=True,
        )  # fmt: skip
        status = _wait(process)
        cost = Cost(status, time.monotonic() - began, _children_cpu() - used)
    (out / "cost.json").write_text(json.dumps(asdict(cost)))
    return cost


def _environment(folder: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in OFFLINE_SWITCHES}
    return kept | QUIET | {"TMPDIR": folder, "HF_HOME": str(Path(folder) / "hf")}


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end, or make one: AIPerf exports what it has when it is interrupted."""
    try:
        return process.wait(LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_EXPORT)
        return -1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what is left of its own group, which it normally empties
        process.wait()


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
