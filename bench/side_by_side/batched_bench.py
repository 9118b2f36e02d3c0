"""llama.cpp's own measure of the same batches, without a server: everything is there at once, nothing is sampled."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.peers.programs import run_llama_tool
from bench.side_by_side.measurement import Bare, Figures


async def batched_bench(bare: Bare, *, n_prompt: int, n_answer: int, batch: int) -> Figures:
    """Run it once; NotAvailableError if it is not there."""
    arguments = (
        *("--model", bare.model, "--ctx-size", batch * (n_prompt + n_answer), "--output-format", "jsonl"),
        *(
            "--threads",
            bare.threads,
            "--threads-batch",
            bare.threads,
            "-npp",
            n_prompt,
            "-ntg",
            n_answer,
            "-npl",
            batch,
        ),
    )
    (row,) = await asyncio.to_thread(run_llama_tool, "llama-batched-bench", *arguments)
    return batch_figures(row)


def batch_figures(row: dict[str, Any]) -> Figures:
    """Answers' tokens over the whole time, and over that of generating alone."""
    tokens = row["pl"] * row["tg"]
    return {"tokens_per_second": tokens / row["t"], "decode_per_second": tokens / row["t_tg"], "seconds": row["t"]}
