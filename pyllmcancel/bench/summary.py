"""Figures of a run: counts, distributions, goodput, and the CPU time spent after hang-ups."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyllmcancel.bench.client import Exchange, Outcome
from pyllmcancel.bench.percentiles import distribution
from pyllmcancel.bench.server_truth import CpuSample, cpu_at, unwanted
from pyllmcancel.bench.workbench import Run

Figures = dict[str, Any]


def summarise(run: Run) -> Figures:
    """Return all figures of a run; the name of a time ends in its unit."""
    by_outcome = Counter(str(entry.outcome) for entry in run.exchanges)
    answered = [entry for entry in run.exchanges if entry.outcome is Outcome.OK]
    found: Figures = {
        "scenario": run.scenario,
        "seconds": run.seconds,
        "requests": len(run.exchanges),
        "ok": by_outcome["ok"],
        "cancelled": by_outcome["cancelled"],
        "hung_up": sum(entry.hung_up for entry in run.exchanges if entry.outcome is Outcome.CANCELLED),
        "cancelled_in": dict(
            Counter(cut_phase(entry) for entry in run.exchanges if entry.outcome is Outcome.CANCELLED)
        ),
        "errors": by_outcome["error"],
        "errors_by_kind": dict(Counter(entry.error or "" for entry in run.exchanges if entry.outcome is Outcome.ERROR)),
    }
    tokens = sum(entry.n_tokens for entry in answered)
    found["goodput_tokens_per_s"] = tokens / run.seconds if run.seconds > 0 else None
    found["goodput_requests_per_s"] = len(answered) / run.seconds if run.seconds > 0 else None
    found["good_tokens"] = tokens
    found["ttft_ms"] = distribution((entry.ttft for entry in answered), 1e3)
    found["itl_ms"] = distribution((gap for entry in answered for gap in entry.itl), 1e3)
    found["latency_ms"] = distribution((entry.latency for entry in answered), 1e3)
    return found | {"server": server_figures(run, tokens), "figures": dict(run.figures)}


def cut_phase(exchange: Exchange) -> str:
    """Return how far an answer had come at the hang-up, as the client saw it, or that the server had cancelled it."""
    if exchange.error is not None:
        return exchange.error
    if exchange.sent_at is None:
        return "sending"
    if exchange.token_at:
        return "streaming"
    return "before the first token" if exchange.first_byte_at is not None else "before the headers"


def server_figures(run: Run, tokens: int) -> Figures:
    """Return the figures of the server's process; empty without a process id.

    ``idle_cpu_s`` is what the process used while no client waited for anything. With one request at a time, that time
    was spent for clients that had left. With several requests it is a lower bound, because work for an abandoned
    request may coincide with a live one.
    """
    if not run.cpu:
        return {}
    began, ended = run.began_at, run.cpu[-1].at
    spent = cpu_between(run.cpu, began, ended)
    waited = [(entry.began_at, entry.ended_at) for entry in run.exchanges if entry.ended_at is not None]
    idle = sum(cpu_between(run.cpu, *gap) for gap in unwanted(waited, began, ended))
    found: Figures = {"cpu_s": spent, "idle_cpu_s": idle, "idle_cpu_share": idle / spent if spent > 0 else None}
    found["cpu_s_per_1000_good_tokens"] = 1e3 * spent / tokens if tokens else None
    if run.stops:
        wasted = sum(stop.cpu_seconds for stop in run.stops.values())
        found["cancel_latency_ms"] = distribution((stop.seconds for stop in run.stops.values()), 1e3)
        found["cpu_after_leaving_s"] = wasted
        found["cpu_after_leaving_share"] = wasted / spent if spent > 0 else None
    return found


def cpu_between(samples: list[CpuSample], began: float, ended: float) -> float:
    return cpu_at(samples, ended) - cpu_at(samples, began)


def cancel_latencies(run: Run) -> list[float]:
    """Return the seconds from each hang-up until the server was idle, if the request was alone on it."""
    return sorted(stop.seconds for stop in run.stops.values())
