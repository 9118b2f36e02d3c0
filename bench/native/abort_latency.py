"""From a raised flag to the return of llama_decode, by phase, tokens in the ubatch, and threads."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

from bench.native.tables import Row, Table, percentile, summary

UBATCHES = (8, 32, 64, 128, 256, 512)
CONTEXT = 1024
HISTORY = 64  # tokens before the one that a decode step computes


def measure(
    probe: Any, model: Any, name: str, *, threads: Sequence[int], ubatches: Sequence[int] = UBATCHES, samples: int = 25
) -> Table:
    """Raise a flag at random moments of a step, from another thread; once at random nodes, too.

    A step is of `n_ubatch` tokens of a prompt or, in decode, of one token.
    """
    table = Table("abort-latency", "flag set to llama_decode returned", "ms")
    for n_threads in threads:
        for phase, n_tokens in (*(("prefill", n_ubatch) for n_ubatch in ubatches), ("decode", 1)):
            raw = probe.RawDecoder(model, n_ctx=CONTEXT, n_batch=max(n_tokens, HISTORY), n_threads=n_threads)
            about: Row = {"model": name, "threads": n_threads, "phase": phase, "n_ubatch": n_tokens}
            table.rows.append(about | one_case(raw, n_tokens, phase, samples))
    return table


def one_case(raw: Any, n_tokens: int, phase: str, samples: int) -> Row:
    """Latencies of one kind of step; a step that ended before its flag was raised does not count."""
    chance = random.Random(1)
    if phase == "decode":
        raw.decode([(0, HISTORY)])
    items = [(0, n_tokens)]
    whole_ns, n_nodes = whole_step(raw, items, phase)
    latencies = []
    for _ in range(10 * samples):
        timing = raw.abort_after(items, int(chance.uniform(0.02, 0.98) * whole_ns))
        if not timing.aborted:
            start_again(raw, phase)
        else:
            latencies.append(timing.latency_ns / 1e6)
        if len(latencies) == samples:
            break
    at_node = [raw.abort_at(items, chance.randint(1, n_nodes - 1)).latency_ns / 1e6 for _ in range(samples)]
    if not latencies:
        raise RuntimeError(f"no step of {n_tokens} tokens could be interrupted: each ended before its flag was raised")
    spread = summary(latencies) | {"p99": round(percentile(latencies, 99), 3)}
    wind_up = round(statistics.median(at_node), 4)
    return {"step_ms": round(whole_ns / 1e6, 3), "nodes": n_nodes, **spread, "at_node_median": wind_up}


def whole_step(raw: Any, items: list[tuple[int, int]], phase: str) -> tuple[float, int]:
    """How long an undisturbed step takes, in ns, and how many nodes it has."""
    raw.node_times(items)
    start_again(raw, phase)
    times = raw.node_times(items)
    start_again(raw, phase)
    return times[-1], len(times)


def start_again(raw: Any, phase: str) -> None:
    """Aborted steps leave no trace, whole ones do: every step is to begin at the same position."""
    raw.clear()
    if phase == "decode":
        raw.decode([(0, HISTORY)])
