"""llama.cpp's own benchmarks, built from the pinned source: tokens per second as they see it.

python -m bench.prepare programs
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.native.probe_module import ROOT

TOOLS = ROOT / "build" / "tools" / "bin"
TIMEOUT = 600


class ToolMissing(FileNotFoundError):  # noqa: N818 - says what is wrong
    """One of llama.cpp's tools is not built."""


def require_tools() -> None:
    """ToolMissing unless both are there."""
    for name in ("llama-bench", "llama-batched-bench"):
        if not (TOOLS / name).exists():
            raise ToolMissing(f"{TOOLS / name} is missing: python -m bench.prepare programs")


def llama_bench(model: Path, threads: int, prompts: Sequence[int], n_generate: int) -> dict[str, float]:
    """Run llama-bench once over these prompt lengths and one generation, after its warm-up; tokens per second."""
    command = ["llama-bench", "-m", str(model), "-t", str(threads), "-r", "1", "-o", "jsonl"]
    command += ["-p", ",".join(map(str, prompts)), "-n", str(n_generate)]
    speeds = {}
    for row in _run(command):
        what = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
        speeds[what] = float(row["avg_ts"])
    return _complete(speeds, [*(f"pp{n}" for n in prompts), f"tg{n_generate}"])


def batched_bench(
    model: Path, threads: int, n_prompt: int, n_generate: int, batches: Sequence[int], *, unified: bool
) -> dict[str, float]:
    """Run llama-batched-bench once; tokens per second of all sequences together while they generate."""
    cells = max(batches) * (n_prompt + n_generate)
    command = ["llama-batched-bench", "-m", str(model), "-t", str(threads), "-tb", str(threads), "-c", str(cells)]
    command += ["-b", "512", "-ub", "512", "-npp", str(n_prompt), "-ntg", str(n_generate)]
    command += ["-npl", ",".join(map(str, batches)), "--output-format", "jsonl", *(["-kvu"] if unified else [])]
    speeds = {f"tg{n_generate}x{row['pl']}": float(row["speed_tg"]) for row in _run(command)}
    return _complete(speeds, [f"tg{n_generate}x{batch}" for batch in batches])


def _run(command: list[str]) -> list[dict[str, Any]]:
    command[0] = str(TOOLS / command[0])
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _complete(speeds: dict[str, float], wanted: list[str]) -> dict[str, float]:
    if missing := [what for what in wanted if what not in speeds]:
        raise RuntimeError(f"llama.cpp's benchmark did not report {', '.join(missing)}")
    return speeds
