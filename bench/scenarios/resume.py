"""A prompt that was cancelled near its end and is sent again continues at the last computed token."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.scenarios.harness import Bench, Server
from bench.scenarios.report import Report

RUNS = 3
PROMPT, CANCEL_AT, CACHED_AT_LEAST = 2000, 1450, 1400
# The rest of a prompt takes its share of the cold time, by tokens. The factor allows for attention over a longer
# history, and for the machine's unsteadiness; the seconds are for HTTP.
MARGIN, SLACK_SECONDS = 1.25, 0.1


async def run(bench: Bench) -> Report:
    """2,000 tokens cancelled at about 1,500 and sent again: at least 1,400 come from the cache."""
    report, chance = Report("resume"), random.Random(bench.seed)
    colds, found = [], []
    for number in range(bench.runs or RUNS):
        # A server for each: a prefix that lies in the cache already costs time.
        async with warm_server(bench, chance, report) as server:
            colds.append(await first_token(server, server.prompt(chance, PROMPT), f"cold-{number}"))
        async with warm_server(bench, chance, report) as server:
            found.append(await cancel_and_resume(server, chance, f"cut-{number}"))
    cold = statistics.median(colds)
    report.figure(f"first token of {PROMPT:,} cold tokens", f"{cold:.3f} s")
    rows = [(number, done, cached, f"{seconds:.3f} s") for number, (done, cached, seconds) in enumerate(found)]
    report.table(("run", "cancelled after", "cached_tokens of the second", "its first token after"), rows)
    cached_least = min(cached for _, cached, _ in found)
    report.check(f"at least {CACHED_AT_LEAST:,} tokens come from the cache", cached_least >= CACHED_AT_LEAST, found)
    expected = [cold * (PROMPT - cached) / PROMPT for _, cached, _ in found]
    times = [seconds for _, _, seconds in found]
    report.figure("its share of the cold time", [f"{seconds / cold:.3f}" for seconds in times])
    report.figure("expected", [f"{seconds / cold:.3f}" for seconds in expected])
    report.check(
        f"the first token comes as soon as the rest can be computed (x {MARGIN}, + {SLACK_SECONDS} s)",
        all(seconds <= MARGIN * due + SLACK_SECONDS for seconds, due in zip(times, expected, strict=True)),
        (times, expected),
    )
    return report


@asynccontextmanager
async def warm_server(bench: Bench, chance: random.Random, report: Report) -> AsyncIterator[Server]:
    """A server that knows what its steps cost."""
    async with bench.server() as server:
        await first_token(server, server.prompt(chance, 256), "warm-up")
        yield server
    report.check_log(server.log)


async def first_token(server: Server, prompt: list[int], request_id: str) -> float:
    """Seconds from "fully sent" to the first token."""
    exchange = await server.start(prompt, 8, request_id).ended()
    if exchange.ttft is None:
        raise RuntimeError(f"no first token: {exchange.error} {exchange.detail}")
    return exchange.ttft


async def cancel_and_resume(server: Server, chance: random.Random, request_id: str) -> tuple[int, int, float]:
    """Tokens done at the cancel, tokens cached of the second request, and seconds until its first token."""
    prompt = server.prompt(chance, PROMPT)
    call = server.start(prompt, 8, request_id)
    # From outside there is no event to wait for.
    while (await server.request(request_id)).get("prompt_tokens_done", 0) < CANCEL_AT:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    call.cut()
    await server.log.ending(request_id)
    done = (await server.request(request_id))["prompt_tokens_done"]
    seconds = await first_token(server, prompt, f"{request_id}-again")
    return done, (await server.request(f"{request_id}-again"))["cached_tokens"], seconds
