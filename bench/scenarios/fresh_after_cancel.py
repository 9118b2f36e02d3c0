"""After a cancelled prompt the machine is free: the next client does not wait for what nobody wants."""

from __future__ import annotations

import asyncio
import random

from bench.scenarios.harness import Bench, Server, completion
from bench.scenarios.report import Report
from bench.scenarios.retry import time_of

RUNS = 10
PROMPT_SECONDS = 26.0
FRESH_TOKENS = 64
LATER_BY = 0.100


async def run(bench: Bench) -> Report:
    """A long prompt is cancelled, and at once somebody else asks: first token within 100 ms of an idle server's."""
    report = Report("fresh-after-cancel")
    chance = random.Random(bench.seed)
    runs = bench.runs or RUNS
    async with bench.server() as server:
        pace = await server.pace(chance)
        size = server.prompt_lasting(PROMPT_SECONDS, pace)
        idle, after = [], []
        for number in range(runs):
            # In turns, so that both see the same machine.
            idle.append(await time_of(server, chance, FRESH_TOKENS))
            after.append(await fresh(server, chance, number, size))
    report.figure("cancelled prompt", f"{size:,} tokens, about {size / pace.prefill:.1f} s")
    report.times(f"first token of {FRESH_TOKENS} tokens, idle", idle)
    report.times("the same at once after a cancel", after)
    # Rank by rank: the machine is not equally fast at all times, and an idle server's slowest is as slow.
    later = [busy - free for busy, free in zip(sorted(after), sorted(idle), strict=True)]
    report.times("later than an idle server's of the same rank", later)
    report.check(f"each within {LATER_BY * 1e3:.0f} ms of an idle server's", max(later) <= LATER_BY, later)
    report.check("no warning in the log", not server.log.complaints(), server.log.complaints()[:3])
    return report


async def fresh(server: Server, chance: random.Random, number: int, size: int) -> float:
    """Cancel a long prompt in the middle of a step, ask for something else; seconds until its first token."""
    request_id = f"long-{number}"
    call = await server.complete(completion(server.prompt(chance, size), 8), request_id=request_id)
    await server.until(request_id, lambda entry: entry["prompt_tokens_done"] > 0)
    await asyncio.sleep(chance.uniform(0.0, 0.5))
    left_at = call.leave(reset=number % 2 == 1)
    other = await server.complete(completion(server.prompt(chance, FRESH_TOKENS), 1))
    first = await other.first_event()
    await other.answer
    await server.log.wait_for(request_id, "cancelled")
    return first.at - left_at
