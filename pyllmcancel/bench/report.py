"""The figures of a load, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pyllmcancel import __version__
from pyllmcancel.bench.answer import ErrorKind
from pyllmcancel.bench.client import Exchange, Outcome
from pyllmcancel.bench.load import LoadOptions, Run
from pyllmcancel.bench.percentiles import distribution
from pyllmcancel.bench.workbench import Workbench
from pyllmcancel.system import memory_bytes, usable_cores

Figures = dict[str, Any]
SCHEMA = 3
LEFT_OUT = ("prompt", "ask", "fields", "text", "tokens", "timings")  # what the answers were is not the result
MOMENTS = ("began_at", "connected_at", "sent_at", "first_byte_at", "ended_at")


# -- figures -----------------------------------------------------------------------------------------------------------


def summarise(run: Run) -> Figures:
    """Return all figures of a load; the name of a time ends in its unit."""
    answered = [entry for entry in run.exchanges if entry.outcome is Outcome.OK]
    cancelled = [entry for entry in run.exchanges if entry.outcome is Outcome.CANCELLED]
    errors = Counter(entry.error or "" for entry in run.exchanges if entry.outcome is Outcome.ERROR)
    tokens = sum(entry.n_tokens for entry in answered)
    found: Figures = {
        "seconds": run.seconds,
        "requests": len(run.exchanges),
        "ok": len(answered),
        "cancelled": len(cancelled),
        "chosen": run.chosen,
        "hung_up": sum(entry.hung_up for entry in cancelled),
        "cancelled_in": dict(Counter(map(cut_phase, cancelled))),
        "errors": errors.total(),
        "errors_by_kind": dict(errors),
        "good_tokens": tokens,
        "goodput_tokens_per_s": tokens / run.seconds if run.seconds > 0 else None,
        "ttft_ms": distribution((entry.ttft for entry in answered), 1e3),
        "itl_ms": distribution((gap for entry in answered for gap in entry.itl), 1e3),
        "latency_ms": distribution((entry.latency for entry in answered), 1e3),
        "cpu_s": run.cpu,
    }
    if run.stops:
        found["cancel_latency_ms"] = distribution((stop.seconds for stop in run.stops.values()), 1e3)
        wasted = sum(stop.cpu_seconds for stop in run.stops.values())
        found["cpu_after_leaving_share"] = wasted / run.cpu if run.cpu else None
    return found


def cut_phase(exchange: Exchange) -> str:
    """Return how far an answer had come at the hang-up, as the client saw it, or that the server had cancelled it."""
    if exchange.error is not None:
        return exchange.error
    if exchange.sent_at is None:
        return "sending"
    if exchange.token_at:
        return "streaming"
    return "before the first token" if exchange.first_byte_at is not None else "before the headers"


# -- the table ---------------------------------------------------------------------------------------------------------


def show(found: Figures, console: Console) -> None:
    """Print the figures with their meanings."""
    table = Table(show_header=False)
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    if found["chosen"] and not found["hung_up"]:
        console.print(
            f"{found['chosen']} requests were to be cut, and none was: each ended before its --delay. "
            "Choose a shorter --delay or a larger --output-tokens.",
            style="bold yellow",
            highlight=False,
        )


def rows(found: Figures) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the value and the meaning of each figure that was measured."""
    for name, field, shown, meaning in ROWS:
        value = found.get(field)
        if field == "cancel_latency_ms" and value is None and found["cpu_s"] is not None:
            yield name, "-", "needs --concurrency 1"
        elif value not in (None, {}) and (not isinstance(value, Mapping) or value.get("n", 1)):
            yield name, shown(value), meaning
    for kind, count in found["errors_by_kind"].items():
        yield f"  {kind}", str(count), "an HTTP error" if kind.startswith("http_") else ErrorKind[kind.upper()].text


def number(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def spread(value: Mapping[str, Any]) -> str:
    return " / ".join(number(value[name]) for name in ("p50", "p90", "p99"))


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def kinds(value: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(value.items()))


ROWS: tuple[tuple[str, str, Callable[[Any], str], str], ...] = (
    ("requests", "requests", str, ""),
    ("answered", "ok", str, ""),
    ("cancelled", "cancelled", str, "by their clients or by the server"),
    ("  to be cut", "chosen", str, "chosen by --percent; some end before their --delay is over"),
    ("  cut", "hung_up", str, "their clients hung up"),
    ("  at which point", "cancelled_in", kinds, ""),
    ("time, s", "seconds", number, ""),
    ("goodput, tokens/s", "goodput_tokens_per_s", number, "tokens of complete answers"),
    ("first token, ms", "ttft_ms", spread, "p50 / p90 / p99, from the last byte sent, of complete answers"),
    ("between tokens, ms", "itl_ms", spread, "the same percentiles"),
    ("whole answer, ms", "latency_ms", spread, "the same percentiles"),
    ("hang-up to rest, ms", "cancel_latency_ms", spread, "until the server's process uses no more CPU time"),
    ("CPU, s", "cpu_s", number, "of the server's process"),
    ("CPU after hang-ups", "cpu_after_leaving_share", percent, "share used for clients that had left"),
    ("failed", "errors", str, ""),
)


# -- JSON --------------------------------------------------------------------------------------------------------------


def describe_machine() -> dict[str, Any]:
    """Describe the processor, and the part of it that this process may use."""
    return {
        "cpu": processor_name(),
        "cores": usable_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def as_json(bench: Workbench, options: LoadOptions, run: Run) -> dict[str, Any]:
    """Return all results in values that JSON has."""
    target = bench.client.target
    return {
        "schema": SCHEMA,
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average": os.getloadavg(),
        "server": {"url": target.url, "model": target.model, "api": target.api, "stream": target.stream},
        "options": asdict(options),
        "prompts_counted_by": bench.prompts.how,
        "summary": summarise(run),
        "exchanges": [exchange_json(entry, run) for entry in run.exchanges],
    }


def exchange_json(entry: Exchange, run: Run) -> dict[str, Any]:
    """Return an exchange; its times are seconds since the load began."""
    found = asdict(entry.ask) | asdict(entry)
    for name in LEFT_OUT:
        del found[name]
    for name in MOMENTS:
        found[name] = None if found[name] is None else round(found[name] - run.began_at, 6)
    found["token_at"] = [round(moment - run.began_at, 6) for moment in entry.token_at]
    stop = run.stops.get(entry.ask.request_id)
    return found | {"stop": asdict(stop) if stop is not None else None}


def write_json(document: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
