"""The cost of the abort callback: a call of it, and a step with and without it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.native.tables import Row, Table, ratios

CONTEXT = 2048
TOKENS = (1, 64)  # of one sequence, in a step


def measure(
    probe: Any, model: Any, name: str, *, threads: Sequence[int], pairs: int = 15, n_polls: int = 1_000_000
) -> Table:
    """Nanoseconds a node, and the share of a step: `pairs` steps with the callback and as many without it, in turn."""
    table = Table("callback-cost", "the abort callback, per graph node and as a share of the step", "ns")
    one, eight = (statistics.median(probe.poll_ns(n, n_polls) for _ in range(5)) for n in (1, 8))
    for n_threads in threads:
        raw = probe.RawDecoder(model, n_ctx=CONTEXT, n_threads=n_threads)
        for n_tokens in TOKENS:
            about: Row = {"model": name, "threads": n_threads, "n_tokens": n_tokens}
            costs: Row = {"per_node_1_member": round(one, 2), "per_node_8_members": round(eight, 2)}
            table.rows.append(about | costs | step_costs(probe, raw, n_tokens, one, pairs))
    return table


def step_costs(probe: Any, raw: Any, n_tokens: int, poll_ns: float, pairs: int) -> Row:
    """The same step with and without the callback; `calculated_share` is nodes times cost over the step."""
    items = [(0, n_tokens)]
    raw.clear()
    nodes = len(raw.node_times(items))
    with_gate: list[int] = []
    without: list[int] = []
    for _ in range(pairs):
        for times, callback in ((with_gate, probe.Callback.GATE), (without, probe.Callback.NONE)):
            raw.clear()
            times.append(raw.decode(items, callback))
    return {
        "nodes": nodes,
        "step_with": float(statistics.median(with_gate)),
        "step_without": float(statistics.median(without)),
        "measured_ratio": ratios(with_gate, without),
        "calculated_share": round(nodes * poll_ns / statistics.median(without), 7),
    }
