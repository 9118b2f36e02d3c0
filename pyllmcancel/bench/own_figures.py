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
# Gauges of requests that wait for a place, by whoever names them.
WAITING = (
    "pyllmcancel_requests_waiting",
    "llamacpp:requests_deferred",
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
)
STEPS_KEPT = 1024  # what /v1/steps shows at most
SLACK = 16
FOLLOW_EVERY = 0.5

Metrics = dict[str, float]


async def read_metrics(client: Client) -> Metrics | None:
    """Samples by name and labels; None if the server has no ``/metrics``."""
    try:
        status, content = await client.fetch("GET", "/metrics")
    except ExchangeError:
        return None
    return parse_metrics(content.decode(errors="replace")) if status == 200 else None


def parse_metrics(text: str) -> Metrics:
    """Prometheus' text format; what is no number is left out."""
    found: Metrics = {}
    for match in filter(None, map(SAMPLE.match, text.splitlines())):
        try:
            found[match[1] + (match[2] or "")] = float(match[3])
        except ValueError:
            continue
    return found


def requests_waiting(metrics: Mapping[str, float]) -> float | None:
    """How many requests wait, by the first gauge that is known; None if there is none."""
    for name in WAITING:
        values = [value for key, value in metrics.items() if key.split("{")[0] == name]
        if values:
            return sum(values)
    return None


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
    """

    metrics: Metrics = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    n_missed: int = 0
    endings: dict[str, dict[str, Any]] = field(default_factory=dict)

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
    before = await read_metrics(client) or {}
    own = OwnFigures()
    follower = StepFollower(client, own, steps["n_steps"])
    following = asyncio.create_task(follower.follow(every))
    try:
        yield own
        await follower.fetch()
        after = await read_metrics(client) or {}
        own.metrics = {name: value - before.get(name, 0.0) for name, value in after.items()}
    finally:
        following.cancel()


class StepFollower:
    """Fetches steps before the server forgets them."""

    def __init__(self, client: Client, own: OwnFigures, newest: int) -> None:
        self._client = client
        self._own = own
        self._newest = newest

    async def follow(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            await self.fetch()

    async def fetch(self) -> None:
        """Fetch the steps since the last time, and no others: writing them down costs the server what it measures."""
        try:
            newest = await self._client.fetch_json("GET", "/v1/steps?last=1")
            missing = newest["n_steps"] - self._newest
            if missing == 0:
                return
            # Some more, for those that are made between the two questions.
            page = await self._client.fetch_json("GET", f"/v1/steps?last={min(STEPS_KEPT, missing + SLACK)}")
            data = page["data"]
        except (ExchangeError, TypeError):
            return  # the next time, or never: then they count as missed
        new = sorted((step for step in data if step["number"] > self._newest), key=lambda step: step["number"])
        if new:
            self._own.n_missed += new[0]["number"] - self._newest - 1
            self._newest = new[-1]["number"]
            self._own.steps += new


async def fetch_endings(client: Client, own: OwnFigures, request_ids: Iterable[str]) -> None:
    """Ask the server how it ended each of these requests."""
    for request_id in request_ids:
        summary = await client.fetch_json("GET", f"/v1/requests/{request_id}")
        if isinstance(summary, dict):
            own.endings[request_id] = summary
