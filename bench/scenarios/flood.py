"""One owner floods the server, another asks: in how many steps its first token comes, and beside one request alone."""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.scenarios.harness import Bench, Server
from bench.scenarios.report import Report
from pyllmcancel.bench.client import Call, Client
from pyllmcancel.bench.exchange import Ask

RUNS, FLOOD, PARALLEL = 5, 500, 4
FLOOD_PROMPT, FLOOD_ANSWER = 60, 400
PROMPTS = (10, 100)
MORE_STEPS = 2


async def run(bench: Bench) -> Report:
    """500 requests of one owner: another's first token comes within two steps of what it takes beside one of them."""
    report, chance = Report("flood"), random.Random(bench.seed)
    rows: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("flood:of many\nother:of one\n")
        limits = ("--max-queue", str(FLOOD), "--max-connections", "0", "--max-connections-per-address", "2000")
        options = ("--parallel", str(PARALLEL), "--api-key-file", str(keys), "--admin-api-key", "root", *limits)
        async with bench.server(*options, api_key="root") as server:
            for n_tokens in PROMPTS:
                beside = {n: await steps_beside(server, bench, chance, n, n_tokens) for n in (1, FLOOD)}
                rows.append((n_tokens, beside[1], beside[FLOOD]))
                medians = {n: statistics.median(steps) for n, steps in beside.items()}
                text = f"{n_tokens} tokens: at most {MORE_STEPS} steps more beside {FLOOD} requests than beside one"
                report.check(text, medians[FLOOD] <= medians[1] + MORE_STEPS, medians)
            report.check_log(server.log)
    report.table(("prompt", "steps to the first token beside 1", f"beside {FLOOD}"), rows)
    return report


async def steps_beside(server: Server, bench: Bench, chance: random.Random, n_flood: int, n_tokens: int) -> list[int]:
    """Return the steps from a request's sending to its first token, beside a number of another owner's requests."""
    found = []
    other = of_owner(server, "of one")
    for number in range(bench.runs or RUNS):
        async with flooded(server, chance, n_flood):
            began = (await server.client.fetch_json("GET", "/v1/steps?last=1"))["n_steps"]
            request_id = f"other-{n_flood}-{n_tokens}-{number}"
            await other.ask(Ask(prompt=server.prompt(chance, n_tokens), max_tokens=1, request_id=request_id))
            steps = (await server.client.fetch_json("GET", "/v1/steps?last=1024"))["data"]
            last = max(step["number"] for step in steps if has(step, request_id))
            found.append(last - began)
    return found


@asynccontextmanager
async def flooded(server: Server, chance: random.Random, n_flood: int) -> AsyncIterator[None]:
    """Keep a number of one owner's requests running or waiting inside the block."""
    flood = of_owner(server, "of many")
    calls: list[Call] = []
    for number in range(n_flood):
        ask = Ask(prompt=server.prompt(chance, FLOOD_PROMPT), max_tokens=FLOOD_ANSWER, request_id=f"flood-{number}")
        calls.append(flood.start(ask))
    try:
        async with asyncio.timeout(120.0):
            # Some may have ended already.
            while await server.count("waiting", "running") < 0.9 * n_flood:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield
    finally:
        for call in calls:
            call.cut()
        with suppress(TimeoutError):
            await server.until_idle()


def of_owner(server: Server, key: str) -> Client:
    return Client(replace(server.client.target, api_key=key))


def has(step: dict[str, Any], request_id: str) -> bool:
    return any(sequence["request"] == request_id for sequence in step["sequences"])
