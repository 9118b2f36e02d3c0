"""A prompt that was cancelled near its end and is sent again goes on from where it was."""

from __future__ import annotations

import random
from typing import Any

from bench.scenarios.harness import Bench, Server, UnsuitableModelError, completion
from bench.scenarios.report import Report
from bench.scenarios.retry import time_of

RUNS = 3
PROMPT, CANCEL_AT, CACHED_AT_LEAST = 2000, 1450, 1400
TOLERANCE_SECONDS = 0.1


async def run(bench: Bench) -> Report:
    """2,000 tokens cancelled at about 1,500 and sent again: at least 1,400 come from the cache."""
    report = Report("resume")
    chance = random.Random(bench.seed)
    rows: list[tuple[Any, ...]] = []
    async with bench.server() as server:
        if server.n_ctx < PROMPT + 32:
            raise UnsuitableModelError(f"a context of {PROMPT + 32:,} tokens is needed, this one has {server.n_ctx:,}")
        await server.pace(chance)
        cold = await time_of(server, chance, PROMPT)
        for number in range(bench.runs or RUNS):
            rows.append(await cancel_and_resume(server, chance, number))  # noqa: PERF401 - one after the other
    report.figure("first token of a cold prompt", f"{cold:.3f} s")
    report.table(("run", "cancelled after", "cached_tokens of the second", "its first token after"), rows)
    cached = [row[2] for row in rows]
    report.check(f"at least {CACHED_AT_LEAST:,} tokens come from the cache", min(cached) >= CACHED_AT_LEAST, cached)
    # The last tokens of a prompt look back at all others: were that all the work, they would cost twice their share.
    limits = [cold * 2.0 * (1 - row[2] / PROMPT) + TOLERANCE_SECONDS for row in rows]
    times = [float(row[3].split()[0]) for row in rows]
    report.check(
        "the first token comes sooner, by what was cached",
        all(seconds <= limit for seconds, limit in zip(times, limits, strict=True)),
        (times, limits),
    )
    report.check("no warning in the log", not server.log.complaints(), server.log.complaints()[:3])
    return report


async def cancel_and_resume(server: Server, chance: random.Random, number: int) -> tuple[Any, ...]:
    prompt = server.prompt(chance, PROMPT)
    request_id = f"cut-{number}"
    call = await server.complete(completion(prompt, 8), request_id=request_id)
    await server.until(request_id, lambda entry: entry["prompt_tokens_done"] >= CANCEL_AT)
    call.leave()
    await server.log.ending(request_id)
    done = (await server.request(request_id))["prompt_tokens_done"]
    again = await server.complete(completion(prompt, 8, stream_options={"include_usage": True}))
    first = await again.first_event()
    usage = (await again.answer).usage
    cached = usage["prompt_tokens_details"]["cached_tokens"] if usage is not None else 0
    return number, done, cached, f"{first.at - again.sent_at:.3f} s"
