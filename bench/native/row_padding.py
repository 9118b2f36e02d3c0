"""A decode step by its number of sequences, with and without padding rows."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from bench.native.tables import Row, Table, ratios, summary
from pyllmcancel.sampling import SamplingParams

N_PROMPT = 64


def measure(
    native: Any, model: Any, name: str, *, threads: int, batches: Sequence[int] = tuple(range(1, 9)), steps: int = 25
) -> Table:
    """Time both in turn, step by step; one sequence more than generates lends its place.

    Each turn begins with a step that is not timed, which wakes the compute threads, and ends with their rest: they
    would spin on the cores of the other context's.
    """
    table = Table("row-padding", "a decode step, and one that is filled up to fours of rows", "ms")
    for n_sequences in batches:
        plain, padded = (
            context_of(native, model, threads, max(batches) + 1, steps, row_padding=choice) for choice in (False, True)
        )
        for context in (plain, padded):
            begin(native, context, n_sequences)
        items = [(seq, 1) for seq in range(n_sequences)]
        padding_before = padded.n_padding
        times: dict[str, list[float]] = {"plain": [], "padded": []}
        turns = [("plain", plain), ("padded", padded)]
        for _ in range(steps):
            turns.reverse()
            for who, context in turns:
                context.step(items)
                start = time.perf_counter()
                context.step(items)
                times[who].append((time.perf_counter() - start) * 1e3)
                context.rest()
        for who, found in times.items():
            n_padding = (padded.n_padding - padding_before) / (2 * steps)
            rows = n_sequences + (round(n_padding) if who == "padded" else 0)
            about: Row = {"model": name, "threads": threads, "sequences": n_sequences, "step": who, "rows": rows}
            table.rows.append(about | summary(found, 1) | {"ratio": ratios(found, times["plain"])})
    return table


def context_of(native: Any, model: Any, threads: int, n_seq_max: int, steps: int, *, row_padding: bool) -> Any:
    return native.Context(
        model,
        n_ctx=n_seq_max * (N_PROMPT + 2 * steps + 1),
        n_seq_max=n_seq_max,
        n_batch=max(N_PROMPT, n_seq_max),
        n_threads=threads,
        kv_unified=False,
        row_padding=row_padding,
    )


def begin(native: Any, context: Any, n_sequences: int) -> None:
    chance = random.Random(1)
    for seq in range(n_sequences):
        tokens = [chance.randrange(context.model.n_vocab) for _ in range(N_PROMPT)]
        sampler = native.Sampler(context.model, SamplingParams(temperature=0.0))
        context.open(seq, tokens, sampler, native.CancelFlag())
        context.step([(seq, N_PROMPT)])
    context.rest()
