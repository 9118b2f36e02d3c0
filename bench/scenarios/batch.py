"""The batch case: a request leaves the batch in the step in which it ends, though its neighbours go on."""

from __future__ import annotations

import random
from typing import Any

from bench.scenarios.harness import Bench, Server, completion
from bench.scenarios.report import Report
from bench.scenarios.step_trace import tracing
from pyllmcancel.bench.server_truth import stopped_after

RUNS = 5
LENGTHS = (40, 80, 160)
QUIET_WITHIN = 0.050


async def run(bench: Bench) -> Report:
    """Three requests of different lengths in one batch: no step has one after its last HTTP byte."""
    report = Report("batch")
    chance = random.Random(bench.seed)
    rows: list[tuple[Any, ...]] = []
    quiet = []
    async with bench.server() as server:
        await server.pace(chance)
        for number in range(bench.runs or RUNS):
            own, rest = await share_a_batch(report, server, chance, number)
            rows += own
            quiet.append(rest)
    report.table(("run", "request", "tokens", "decode steps", "last byte after its last step", "steps after it"), rows)
    report.check("no step contains a request after its last byte", all(row[-1] == 0 for row in rows))
    report.check("each is in exactly as many decode steps as it has tokens", all(row[3] == row[2] - 1 for row in rows))
    worst = report.times("from the last byte until the process rests", quiet)
    report.check(f"the process rests within {QUIET_WITHIN * 1e3:.0f} ms", worst <= QUIET_WITHIN * 1e3)
    report.check_log(server.log)
    return report


async def share_a_batch(
    report: Report, server: Server, chance: random.Random, number: int
) -> tuple[list[tuple[Any, ...]], float]:
    """Three at once; returns a row for each, and the seconds until the process rests after the last one."""
    lengths = chance.sample(LENGTHS, len(LENGTHS))
    # Nothing of ours may ask the server anything while it should come to rest.
    async with tracing(server.url, every=3600.0) as trace:
        bodies = [completion(server.prompt(chance, 32), length) for length in lengths]
        calls = [await server.complete(body, request_id=f"r{number}-{i}") for i, body in enumerate(bodies)]
        answers = [await call.answer for call in calls]
        last_byte = max(answer.ended_at or 0.0 for answer in answers)
        quiet = (await stopped_after(server.pid, last_byte)).seconds
    report.check(f"run {number}: all answers are complete", all(answer.complete for answer in answers))
    shared = sum(len(step.tokens) == len(calls) for step in trace)
    report.check(f"run {number}: they did share a batch", shared >= min(LENGTHS) // 2, shared)
    rows: list[tuple[Any, ...]] = []
    for call, answer in zip(calls, answers, strict=True):
        ended_at = answer.ended_at or 0.0
        steps = [step for step in trace if call.id in step.tokens]
        late = sum(step.began > ended_at for step in steps)
        decodes = sum(call.id in step.decoding for step in steps)
        after = f"{(ended_at - steps[-1].ended) * 1e3:.2f} ms"
        rows.append((number, call.id, len(answer.tokens()), decodes, after, late))
    return rows, quiet
