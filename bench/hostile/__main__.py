"""Delays of health, a short completion, a cancel and SIGTERM, alone and beside hostile input.

    python -m bench.hostile [--seconds 3] [--files 256] [--only TEXT] [--json FILE]

For each attack a server of the packaged model is started; one client attacks while another is served. Times are the
worst that were seen, in milliseconds. ``--files`` starts the servers with so few file descriptors.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from bench.hostile.attacks import NAMES, attack
from bench.hostile.probes import LIMIT, Visitor
from bench.peers import OURS, Settings
from bench.peers.running import wait_until_ready
from pyllmcancel.models import packaged_model_path

PROBES = ("health", "completion", "cancel")
PAUSE = 0.02  # seconds between two probes of a kind
GONE_WITHIN = 10.0
COLUMNS = ("attack", *PROBES, "SIGTERM", "peak MiB", "tracebacks", "log lines")


def measure(name: str | None, port: int, seconds: float, files: int | None, log: Path) -> dict[str, Any]:
    """The worst times beside one attack, or without any."""
    settings = Settings(model=packaged_model_path(), port=port, threads=1, parallel=0, ctx_size=0)
    with log.open("wb") as output:
        process = subprocess.Popen(OURS.command(settings), stdout=output, stderr=subprocess.STDOUT)
    try:
        if files is not None:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
        wait_until_ready(process, f"{settings.url}/health")
        visitors = {probe: Visitor(port) for probe in PROBES}
        for probe, visitor in visitors.items():
            getattr(visitor, probe)()  # the first of its kind imports, and fills caches
        worst: dict[str, Any] = {"attack": name or "none"}
        with nullcontext() if name is None else attack(port, name), ThreadPoolExecutor() as threads:
            until = time.monotonic() + seconds
            for probe, times in zip(PROBES, threads.map(partial(visit, until), visitors.items()), strict=True):
                worst[probe] = max(times)
            worst["peak MiB"] = peak_mib(process.pid)
            worst["SIGTERM"] = seconds_to_end(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    text = log.read_text(errors="replace")
    return worst | {"tracebacks": text.count("Traceback"), "log lines": text.count("\n")}


def visit(until: float, visitor: tuple[str, Visitor]) -> list[float]:
    """Probe, with pauses, until that time."""
    probe = getattr(visitor[1], visitor[0])
    times = []
    while time.monotonic() < until:
        times.append(probe())
        time.sleep(PAUSE)
    return times


def peak_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


def seconds_to_end(process: subprocess.Popen[bytes]) -> float:
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GONE_WITHIN)
    except subprocess.TimeoutExpired:
        return GONE_WITHIN
    return time.monotonic() - began


def cell(row: dict[str, Any], column: str) -> str:
    value = row[column]
    if not isinstance(value, float):
        return str(value)
    limit = GONE_WITHIN if column == "SIGTERM" else LIMIT
    return f"> {limit * 1e3:,.0f}" if value >= limit else f"{value * 1e3:,.0f}"


def show(row: dict[str, Any]) -> None:
    sys.stdout.write("| " + " | ".join(cell(row, column) for column in COLUMNS) + " |\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each attack is watched")
    parser.add_argument("--port", type=int, default=18_240)
    parser.add_argument("--files", type=int, help="most open files of the servers")
    parser.add_argument("--only", default="", help="attacks whose name matches this regular expression")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.stdout.write(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (None, *(name for name in NAMES if re.search(arguments.only, name))):
            rows.append(measure(name, arguments.port, arguments.seconds, arguments.files, Path(folder) / "log"))
            show(rows[-1])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
