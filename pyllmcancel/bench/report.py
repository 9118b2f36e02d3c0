"""All results of a bench as JSON, for programs, and for another look later."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyllmcancel import __version__
from pyllmcancel.bench.client import Client, Exchange
from pyllmcancel.bench.summary import summarise
from pyllmcancel.bench.workbench import Run
from pyllmcancel.system import load_average, memory_bytes, usable_cores

SCHEMA = 2
LEFT_OUT = ("prompt", "ask", "fields", "text", "tokens", "timings")  # what the answers were is not the result
MOMENTS = ("began_at", "connected_at", "sent_at", "first_byte_at", "ended_at")


async def describe_server(client: Client) -> dict[str, Any]:
    """Return a server's description of itself: the model that it lists, and its build if it names one."""
    models = await client.fetch_json("GET", "/v1/models")
    props = await client.fetch_json("GET", "/props")
    return {
        "url": client.target.url,
        "model": client.target.model,
        "models": models.get("data") if isinstance(models, dict) else None,
        "build": props.get("build_info") if isinstance(props, dict) else None,
    }


def describe_machine() -> dict[str, Any]:
    """Describe the processor, and the part of it that this process may use."""
    return {
        "cpu": processor_name(),
        "cores": usable_cores(),
        "memory_gib": None if (memory := memory_bytes()) is None else round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def as_json(
    runs: Sequence[Run], *, server: Mapping[str, Any], options: Mapping[str, Any], prompts: str
) -> dict[str, Any]:
    """Return all results in values that JSON has."""
    return {
        "schema": SCHEMA,
        "tool": "pyllmcancel bench cancel",
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "machine": describe_machine(),
        "load_average": load_average(),
        "server": dict(server),
        "options": dict(options),
        "prompts_counted_by": prompts,
        "runs": [run_json(run) for run in runs],
    }


def run_json(run: Run) -> dict[str, Any]:
    """Return one run: its beginning on the monotonic clock, and all other times in seconds since then."""
    return {
        "scenario": run.scenario,
        "options": run.options,
        "began_at": run.began_at,
        "seconds": run.seconds,
        "summary": summarise(run),
        "exchanges": [exchange_json(entry, run) for entry in run.exchanges],
        "cpu": [[round(sample.at - run.began_at, 6), round(sample.cpu_seconds, 6)] for sample in run.cpu],
    }


def exchange_json(entry: Exchange, run: Run) -> dict[str, Any]:
    told = asdict(entry.ask) | asdict(entry)
    for name in LEFT_OUT:
        del told[name]
    for name in MOMENTS:
        told[name] = None if told[name] is None else round(told[name] - run.began_at, 6)
    told["token_at"] = [round(moment - run.began_at, 6) for moment in entry.token_at]
    stop = run.stops.get(entry.ask.request_id)
    return told | {"stop": asdict(stop) if stop is not None else None}


def write_json(document: Mapping[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
