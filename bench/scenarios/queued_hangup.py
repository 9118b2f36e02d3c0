"""Clients that wait in the queue leave while another one's answer streams, which must not notice."""

from __future__ import annotations

import asyncio
import random

from bench.scenarios.harness import Bench, Server, completion, logprob_gap, same_tokens
from bench.scenarios.http_client import Answer
from bench.scenarios.report import Report
from bench.scenarios.step_trace import Step, tracing

STREAM_SECONDS = 20.0
SECONDS_A_VISIT = 0.045
NOTICED_WITHIN = 0.050
OPTIONS = ("--parallel", "1")


async def run(bench: Bench) -> Report:
    """Twenty queued clients hang up during one 20 s stream: each is gone within 50 ms and never launched."""
    report, chance, runs = Report("queued-hangup"), random.Random(bench.seed), bench.runs or 20
    async with bench.server(*OPTIONS) as server:
        pace = await server.pace(chance)
        body = completion(server.prompt(chance, 32), server.answer_lasting(STREAM_SECONDS, pace, 32))
        # Spread over the stream, at no fixed place within a step.
        pause = STREAM_SECONDS / runs
        answer, _ = await visited(report, server, chance, body, runs, reset=False, pause=(0.5 * pause, pause))
    whole = answer.complete and len(answer.tokens()) == body["max_tokens"]
    report.check("the streamer's answer is complete", whole)
    return report


async def run_ik_llama(bench: Bench) -> Report:
    """One slot, and 200 queued clients reset their connections during one long answer, which must not notice.

    ik_llama.cpp's case: there the disconnect of a queued request ended the one that computed.
    """
    report, chance, runs = Report("ik-llama"), random.Random(bench.seed), bench.runs or 200
    async with bench.server(*OPTIONS) as server:
        pace = await server.pace(chance)
        body = completion(server.prompt(chance, 64), server.answer_lasting(runs * SECONDS_A_VISIT, pace, 64))
    (alone,) = await bench.known_answers([body], *OPTIONS)
    async with bench.server(*OPTIONS) as server:
        answer, steps = await visited(report, server, chance, body, runs, reset=True)
    report.figure("the same alone", f"{alone.events[-1].at - alone.events[0].at:.1f} s after its first token")
    report.figure("largest difference of a logprob", logprob_gap(answer, alone))
    report.check(f"it has exactly its {body['max_tokens']:,} tokens", same_tokens(answer, alone))
    strangers = [step.number for step in steps if set(step.tokens) != {"streamer"}]
    report.check("every step is its alone", not strangers, strangers[:5])
    return report


async def visited(
    report: Report,
    server: Server,
    chance: random.Random,
    body: dict[str, object],
    runs: int,
    *,
    reset: bool,
    pause: tuple[float, float] = (0.0, 0.0),
) -> tuple[Answer, list[Step]]:
    """Stream an answer, and have `runs` clients queue up and leave beside it; the answer, and the server's steps."""
    ids = [f"queued-{i}" for i in range(runs)]
    async with tracing(server.url) as steps:
        streamer = await server.complete(body, request_id="streamer")
        await streamer.first_event()
        noticed = []
        for request_id in ids:
            noticed.append(await visit(server, chance, request_id, reset=reset))
            await asyncio.sleep(chance.uniform(*pause))
        streaming = not streamer.answer.done()
        answer = await streamer.answer
    report.figure("stream", f"{len(answer.tokens()):,} tokens in {answer.events[-1].at - streamer.sent_at:.1f} s")
    worst = report.times("from leaving until gone from the queue", noticed)
    report.check("the streamer was streaming all the while", streaming)
    report.check(f"each is gone within {NOTICED_WITHIN * 1e3:.0f} ms", worst <= NOTICED_WITHIN * 1e3)
    endings = [server.log.endings(request_id) for request_id in ids]
    found = {(line.verb, line.reason, line.phase) for lines in endings for line in lines}
    expected = {("cancelled", "disconnect", "waiting")}
    report.check("all end as cancelled (disconnect) in waiting", found == expected, found)
    report.check("exactly one ending each", all(len(lines) == 1 for lines in endings))
    launched = sorted({request_id for step in steps for request_id in step.tokens}.intersection(ids))
    report.check(f"none is in any of {len(steps):,} steps", not launched, launched)
    aborted = [step for step in steps if step.status != "ok"]
    report.check("no step was aborted", not aborted, aborted[:3])
    report.check_log(server.log)
    return answer, steps


async def visit(server: Server, chance: random.Random, request_id: str, *, reset: bool) -> float:
    """Queue up, leave; seconds from leaving until the server has ended the request."""
    body = completion(server.prompt(chance, 64), 32, stream=chance.random() < 0.5)
    call = await server.complete(body, request_id=request_id)
    await server.log.wait_for(request_id, "added")
    await asyncio.sleep(chance.uniform(0.0, 0.02))
    left_at = call.leave(reset=reset)
    return (await server.log.ending(request_id)).at - left_at
