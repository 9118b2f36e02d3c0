"""The retry that never ended elsewhere: a client whose time-out is shorter than its prompt takes."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import pairwise
from typing import Any

from bench.scenarios.harness import LONGEST_PROMPT, Bench, Server, completion
from bench.scenarios.report import Report

PROMPT_SECONDS = 20.0
TRIES = 5
TOLERANCE, CALIBRATIONS = 0.1, 2


async def run(bench: Bench) -> Report:
    """A client gives up after a quarter of its prompt's time and sends it again: done by the fifth try."""
    report = Report("retry")
    chance = random.Random(bench.seed)
    async with bench.server() as server:
        size, whole = await prompt_taking(server, chance, PROMPT_SECONDS)
        prompt = server.prompt(chance, size)
        rows: list[tuple[Any, ...]] = []
        for number in range(1, TRIES + 1):
            rows.append(await attempt(server, prompt, number, whole / (TRIES - 1)))
            if rows[-1][1] == "answered":
                break
    report.figure("prompt", f"{size:,} tokens, which take {whole:.2f} s")
    report.figure("time-out", f"{whole / (TRIES - 1):.2f} s")
    report.table(("try", "outcome", "seconds", "cached tokens", "tokens done"), rows)
    report.check(f"answered by try {TRIES}", rows[-1][1] == "answered")
    done = [row[4] for row in rows]
    report.check("every try gets further than the one before", all(a < b for a, b in pairwise(done)))
    report.check("no warning in the log", not server.log.complaints(), server.log.complaints()[:3])
    return report


async def prompt_taking(server: Server, chance: random.Random, seconds: float) -> tuple[int, float]:
    """Tokens of a prompt that takes about `seconds`, and the time that it takes."""
    size = server.prompt_lasting(seconds, await server.pace(chance))
    whole = await time_of(server, chance, size)
    for _ in range(CALIBRATIONS):
        if abs(whole - seconds) <= TOLERANCE * seconds:
            break
        # A long prompt's tokens cost more than a short one's, so the size goes with a root of the time.
        wanted = int(size * (seconds / whole) ** 0.75)
        size, before = min(wanted, server.n_ctx - 64, LONGEST_PROMPT), size
        if size == before:
            break  # the model is too fast, or its context too small: whatever it takes
        whole = await time_of(server, chance, size)
    return size, whole


async def time_of(server: Server, chance: random.Random, size: int) -> float:
    """Seconds until the first token of a prompt that nothing is known of."""
    call = await server.complete(completion(server.prompt(chance, size), 1))
    first = await call.first_event()
    await call.answer
    return first.at - call.sent_at


async def attempt(server: Server, prompt: list[int], number: int, time_out: float) -> tuple[Any, ...]:
    """One try: its number, what became of it, how long it took, how many tokens were cached and how many done."""
    request_id = f"try-{number}"
    began = time.monotonic()
    call = await server.complete(completion(prompt, 8, stream=False), request_id=request_id)
    try:
        answer = await asyncio.wait_for(asyncio.shield(call.answer), time_out)
        outcome = "answered" if answer.complete else str(answer.error_code)
    except TimeoutError:
        call.leave()
        outcome = "timed out"
    seconds = f"{time.monotonic() - began:.2f}"
    await server.log.ending(request_id)
    entry = await server.request(request_id)
    return number, outcome, seconds, entry["cached_tokens"], entry["prompt_tokens_done"]
