"""What a run comes to: counts, distributions, goodput, and what the server computed for nobody."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pyllmcancel.bench.client import Exchange, Outcome
from pyllmcancel.bench.percentiles import distribution
from pyllmcancel.bench.server_truth import CpuSample, cpu_at, unwanted
from pyllmcancel.bench.workbench import Run

Figures = dict[str, Any]


def summarise(run: Run) -> Figures:
    """All figures of a run; times in the unit that ends their name."""
    by_outcome = Counter(str(entry.outcome) for entry in run.exchanges)
    answered = [entry for entry in run.exchanges if entry.outcome is Outcome.OK]
    found: Figures = {
        "scenario": run.scenario,
        "seconds": run.seconds,
        "requests": len(run.exchanges),
        "ok": by_outcome["ok"],
        "cancelled": by_outcome["cancelled"],
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
    return found | {"server": server_figures(run, tokens), "own": own_figures(run), "figures": dict(run.figures)}


def cut_phase(exchange: Exchange) -> str:
    """How far an answer had come at the hang-up, as the client saw it."""
    if exchange.sent_at is None:
        return "sending"
    if exchange.token_at:
        return "streaming"
    return "before the first token" if exchange.first_byte_at is not None else "before the headers"


def server_figures(run: Run, tokens: int) -> Figures:
    """The process's truth; empty without a process id.

    ``idle_cpu_s`` is what the process used while no client waited for anything. With one request at a time that is what
    it spent for those that had left; with several it is a lower bound: a dead request may hide behind a live one.
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


def own_figures(run: Run) -> Figures:
    """The server's own account; empty if it gives none."""
    if run.own is None:
        return {}
    gone = left_at(run)
    total, late = run.own.seconds_of(gone)
    latencies = run.own.latencies_ms()
    found: Figures = {
        "step_s": total,
        "step_s_after_leaving": late,
        "step_share_after_leaving": late / total if total > 0 else None,
        "steps_missed": run.own.n_missed,
        "rest_after_ms": distribution(run.own.rest_after(gone).values(), 1e3),
        "cancel_latency_ms": {phase: distribution(values) for phase, values in sorted(latencies.items())},
    }
    for name in ("tokens_computed", "tokens_delivered", "tokens_wasted", "steps_aborted", "steps_redone"):
        value = run.own.metrics.get(f"pyllmcancel_{name}_total")
        if value is not None:
            found[name] = value
    return found


def cpu_between(samples: list[CpuSample], began: float, ended: float) -> float:
    return cpu_at(samples, ended) - cpu_at(samples, began)


def cancel_latencies(run: Run) -> list[float]:
    """Seconds from each hang-up until nothing was computed for it any more.

    By the process's CPU time where the request was alone on the server, else by the steps that the server shows; empty
    where neither is known.
    """
    if run.stops:
        return sorted(stop.seconds for stop in run.stops.values())
    return sorted(run.own.rest_after(left_at(run)).values()) if run.own is not None else []


def left_at(run: Run) -> dict[str, float]:
    """When each client that hung up did so, by request id."""
    cut = [entry for entry in run.exchanges if entry.outcome is Outcome.CANCELLED]
    return {entry.ask.request_id: entry.ended_at for entry in cut if entry.ended_at is not None}
