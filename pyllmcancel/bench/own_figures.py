"""What a server says about itself, where it does: Prometheus metrics of any make, pyllmcancel's steps and requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Client

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})? (\S+)")
STEPS_KEPT = 1024  # what /v1/steps shows at most
SLACK = 16
FOLLOW_EVERY = 0.5

Metrics = dict[str, float]


async def read_metrics(client: Client) -> Metrics:
    """Samples by name and labels; none if the server has no ``/metrics``."""
    try:
        status, content = await client.fetch("GET", "/metrics")
    except ExchangeError:
        return {}
    return parse_metrics(content.decode(errors="replace")) if status == 200 else {}


def parse_metrics(text: str) -> Metrics:
    """Prometheus' text format; what is no number is left out."""
    found: Metrics = {}
    for match in filter(None, map(SAMPLE.match, text.splitlines())):
        try:
            found[match[1] + (match[2] or "")] = float(match[3])
        except ValueError:
            continue
    return found


@dataclass(slots=True)
class OwnFigures:
    """pyllmcancel's own account of a run.

    Attributes
    ----------
    metrics
        How much each counter has grown.
    steps
        The steps of the run, oldest first, as ``/v1/steps`` shows them.
    n_missed
        Steps that were forgotten before they were fetched.
    endings
        The server's summary of each request that was cut, by id.
    newest_step
        The number of the last step that was fetched, or was made before the run.
    """

    metrics: Metrics = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    n_missed: int = 0
    endings: dict[str, dict[str, Any]] = field(default_factory=dict)
    newest_step: int = 0

    def seconds_of(self, left_at: Mapping[str, float]) -> tuple[float, float]:
        """Seconds of computing in all, and for requests whose client had left by then.

        A step's time is shared among its sequences by their tokens. Client and server must share a clock, which they do
        on one machine.
        """
        total = wasted = 0.0
        for step in self.steps:
            began, seconds = step["started_at"], step["seconds"]
            total += seconds
            n_tokens = sum(entry["n_tokens"] for entry in step["sequences"]) or 1
            for entry in step["sequences"]:
                left = left_at.get(entry["request"], float("inf"))
                late = min(seconds, max(0.0, began + seconds - left))
                wasted += late * entry["n_tokens"] / n_tokens
        return total, wasted

    def rest_after(self, left_at: Mapping[str, float]) -> dict[str, float]:
        """Seconds from each hang-up to the end of the last step that computed for it; 0 if none did after that."""
        found = dict.fromkeys(left_at, 0.0)
        for step in self.steps:
            ended = step["started_at"] + step["seconds"]
            for entry in step["sequences"]:
                if entry["request"] in found:
                    found[entry["request"]] = max(found[entry["request"]], ended - left_at[entry["request"]])
        return found

    def latencies_ms(self) -> dict[str, list[float]]:
        """The server's own cancel latencies by phase: from its `cancel()` to stopped and slot free."""
        found: dict[str, list[float]] = {}
        for ending in self.endings.values():
            if ending.get("cancel_latency_ms") is not None:
                found.setdefault(str(ending.get("phase")), []).append(ending["cancel_latency_ms"])
        return found


@asynccontextmanager
async def own_account(client: Client, every: float = FOLLOW_EVERY) -> AsyncIterator[OwnFigures | None]:
    """Collect the server's own figures while the block runs; None if it is no pyllmcancel.

    Steps are fetched `every` so many seconds, before the server forgets them.
    """
    steps = await client.fetch_json("GET", "/v1/steps?last=1")
    if not isinstance(steps, dict) or "n_steps" not in steps:
        yield None
        return
    before = await read_metrics(client)
    own = OwnFigures(newest_step=steps["n_steps"])

    async def follow() -> None:
        while True:
            await asyncio.sleep(every)
            await fetch_steps(client, own)

    following = asyncio.create_task(follow())
    try:
        yield own
        await fetch_steps(client, own)
        after = await read_metrics(client)
        own.metrics = {name: value - before.get(name, 0.0) for name, value in after.items()}
    finally:
        following.cancel()


async def fetch_steps(client: Client, own: OwnFigures) -> None:
    """Fetch the steps since the last time, and no others: writing them down costs the server what it measures."""
    try:
        newest = await client.fetch_json("GET", "/v1/steps?last=1")
        missing = newest["n_steps"] - own.newest_step
        if missing == 0:
            return
        # Some more, for those that are made between the two questions.
        page = await client.fetch_json("GET", f"/v1/steps?last={min(STEPS_KEPT, missing + SLACK)}")
        data = page["data"]
    except (ExchangeError, TypeError):
        return  # the next time, or never: then they count as missed
    new = sorted((step for step in data if step["number"] > own.newest_step), key=lambda step: step["number"])
    if new:
        own.n_missed += new[0]["number"] - own.newest_step - 1
        own.newest_step = new[-1]["number"]
        own.steps += new


async def fetch_endings(client: Client, own: OwnFigures, request_ids: Iterable[str]) -> None:
    """Ask the server how it ended each of these requests."""
    for request_id in request_ids:
        summary = await client.fetch_json("GET", f"/v1/requests/{request_id}")
        if isinstance(summary, dict):
            own.endings[request_id] = summary
