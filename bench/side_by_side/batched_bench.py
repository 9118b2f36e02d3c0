"""llama.cpp's own measure of the same batches, without a server: everything is there at once, nothing is sampled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bench.peers.protocol import ROOT, find_program
from bench.side_by_side.measurement import Bare, Figures

VARIABLE = "LLAMA_BATCHED_BENCH"
DEFAULT = ROOT / "build" / "tools" / "bin" / "llama-batched-bench"


async def batched_bench(bare: Bare, *, n_prompt: int, n_answer: int, batch: int) -> Figures:
    """Run it once.

    Raises
    ------
    NotAvailableError
        If it is not there.
    RuntimeError
        If it fails.
    """
    command = arguments(bare, n_prompt, n_answer, batch)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    rows = [json.loads(line) for line in output.decode().splitlines() if line.startswith("{")]
    (row,) = rows
    return batch_figures(row)


def arguments(bare: Bare, n_prompt: int, n_answer: int, batch: int) -> list[str]:
    cells = batch * (n_prompt + n_answer)
    return [
        *(find_program(VARIABLE, DEFAULT), "--model", str(bare.model), "--ctx-size", str(cells)),
        *("--threads", str(bare.threads), "--threads-batch", str(bare.threads)),
        *("-npp", str(n_prompt), "-ntg", str(n_answer), "-npl", str(batch)),
        *("--output-format", "jsonl"),
    ]


def batch_figures(row: dict[str, Any]) -> Figures:
    """Answers' tokens over the whole time, and over that of generating alone."""
    tokens = row["pl"] * row["tg"]
    return {"tokens_per_second": tokens / row["t"], "decode_per_second": tokens / row["t_tg"], "seconds": row["t"]}
