"""A prompt that was cancelled near its end and is sent again goes on from where it was."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.scenarios.harness import Bench, Server, UnsuitableModelError, completion
from bench.scenarios.report import Report

RUNS = 3
PROMPT, CANCEL_AT, CACHED_AT_LEAST = 2000, 1450, 1400
# The rest of a prompt takes its share of the cold time, by tokens: the factor is for its looking back at more than the
# beginning does, and for the machine's unsteadiness, the seconds are for the way through HTTP.
MARGIN, SLACK_SECONDS = 1.25, 0.1


async def run(bench: Bench) -> Report:
    """2,000 tokens cancelled at about 1,500 and sent again: at least 1,400 come from the cache."""
    report, chance = Report("resume"), random.Random(bench.seed)
    async with warm_server(bench, chance, report) as server:
        cold = await cold_seconds(server, chance)
    found = []
    for number in range(bench.runs or RUNS):
        async with warm_server(bench, chance, report) as server:
            found.append(await cancel_and_resume(server, chance, f"cut-{number}"))
    report.figure(f"first token of {PROMPT:,} cold tokens", f"{cold:.3f} s")
    rows = [(number, done, cached, f"{seconds:.3f} s") for number, (done, cached, seconds) in enumerate(found)]
    report.table(("run", "cancelled after", "cached_tokens of the second", "its first token after"), rows)
    all_cached = [cached for _, cached, _ in found]
    report.check(f"at least {CACHED_AT_LEAST:,} tokens come from the cache", min(all_cached) >= CACHED_AT_LEAST, found)
    expected = [cold * (PROMPT - cached) / PROMPT for cached in all_cached]
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
    """A server that knows what its steps cost, and whose cache holds next to nothing: what lies there costs time."""
    async with bench.server() as server:
        if server.n_ctx < PROMPT + 32:
            raise UnsuitableModelError(f"a context of {PROMPT + 32:,} tokens is needed, this one has {server.n_ctx:,}")
        await server.pace(chance)
        yield server
    report.check_log(server.log)


async def cold_seconds(server: Server, chance: random.Random) -> float:
    """Seconds until the first token of a prompt that nothing is known of."""
    call = await server.complete(completion(server.prompt(chance, PROMPT), 1))
    first = await call.first_event()
    await call.answer
    return first.at - call.sent_at


async def cancel_and_resume(server: Server, chance: random.Random, request_id: str) -> tuple[int, int, float]:
    """Tokens done at the cancel, tokens cached of the second request, and seconds until its first token."""
    prompt = server.prompt(chance, PROMPT)
    call = await server.complete(completion(prompt, 8), request_id=request_id)
    await server.log.wait_for(request_id, "added")
    await server.until(request_id, lambda entry: entry["prompt_tokens_done"] >= CANCEL_AT)
    call.leave()
    await server.log.ending(request_id)
    done = (await server.request(request_id))["prompt_tokens_done"]
    again = await server.complete(completion(prompt, 8, stream_options={"include_usage": True}))
    first = await again.first_event()
    usage = (await again.answer).usage
    cached = usage["prompt_tokens_details"]["cached_tokens"] if usage is not None else 0
    return done, cached, first.at - again.sent_at
