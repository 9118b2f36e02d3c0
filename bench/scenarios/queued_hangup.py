"""A client that waits in the queue hangs up while another one's answer streams."""

from __future__ import annotations

import asyncio
import random

from bench.scenarios.harness import Bench, Server, completion, tracing
from bench.scenarios.report import Report
from bench.scenarios.step_trace import StepTrace

RUNS = 20
STREAM_SECONDS = 20.0
NOTICED_WITHIN = 0.050


async def run(bench: Bench) -> Report:
    """Twenty queued clients hang up during one 20 s stream: each is gone within 50 ms and never launched."""
    report = Report("queued-hangup")
    chance = random.Random(bench.seed)
    runs = bench.runs or RUNS
    async with bench.server("--parallel", "1") as server:
        pace = await server.pace(chance)
        n_tokens = server.answer_lasting(STREAM_SECONDS, pace, 32)
        async with tracing(server) as trace:
            streamer = await server.complete(completion(server.prompt(chance, 32), n_tokens), request_id="streamer")
            await streamer.first_event()
            ids, noticed = [f"queued-{i}" for i in range(runs)], []
            for request_id in ids:
                noticed.append(await visit(server, chance, request_id, reset=False))
                # Spread over the stream, at no fixed place within a step.
                await asyncio.sleep(chance.uniform(0.5, 1.0) * STREAM_SECONDS / runs)
            streaming = not streamer.answer.done()
            answer = await streamer.answer
    report.figure("stream", f"{len(answer.events):,} tokens in {answer.events[-1].at - streamer.sent_at:.1f} s")
    worst = report.times("from the close until gone from the queue", noticed)
    report.check("the streamer was streaming all the while", streaming)
    report.check("the streamer's answer is complete", answer.complete and len(answer.events) == n_tokens)
    report.check(f"each is gone within {NOTICED_WITHIN * 1e3:.0f} ms", worst <= NOTICED_WITHIN * 1e3)
    judge_visitors(report, server, trace, ids)
    return report


async def visit(server: Server, chance: random.Random, request_id: str, *, reset: bool) -> float:
    """Queue up, leave; seconds from the close until the server has ended the request."""
    body = completion(server.prompt(chance, 64), 32, stream=chance.random() < 0.5)
    call = await server.complete(body, request_id=request_id)
    await server.log.wait_for(request_id, "added")
    await asyncio.sleep(chance.uniform(0.0, 0.02))
    left_at = call.leave(reset=reset)
    return (await server.log.ending(request_id)).at - left_at


def judge_visitors(report: Report, server: Server, trace: StepTrace, ids: list[str]) -> None:
    """None was launched, each was cancelled where it waited, and cleaned up once."""
    endings = [server.log.endings(request_id) for request_id in ids]
    found = {(line.verb, line.reason, line.phase) for lines in endings for line in lines}
    report.check(
        "all end as cancelled (disconnect) in waiting", found == {("cancelled", "disconnect", "waiting")}, found
    )
    report.check("exactly one ending each", all(len(lines) == 1 for lines in endings))
    launched = trace.contains_any(ids)
    report.check(f"none is in any of {len(trace.steps):,} steps", not launched, launched)
    report.check("no step was aborted", not trace.aborted(), trace.aborted()[:3])
    report.check("no warning in the log", not server.log.complaints(), server.log.complaints()[:3])
