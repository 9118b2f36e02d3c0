"""ik_llama.cpp's case: the disconnect of a queued request must not reach the one that computes."""

from __future__ import annotations

import random

from bench.scenarios.harness import Bench, completion, logprob_gap, same_tokens, tracing
from bench.scenarios.queued_hangup import judge_visitors, visit
from bench.scenarios.report import Report

RUNS = 200
SECONDS_A_VISIT = 0.045
NOTICED_WITHIN = 0.050
OPTIONS = ("--parallel", "1")


async def run(bench: Bench) -> Report:
    """One slot, and 200 queued clients reset their connections during one long answer, which must not notice."""
    report = Report("ik-llama")
    chance = random.Random(bench.seed)
    runs = bench.runs or RUNS
    async with bench.server(*OPTIONS) as server:
        pace = await server.pace(chance)
        n_tokens = server.answer_lasting(runs * SECONDS_A_VISIT, pace, 64)
        body = completion(server.prompt(chance, 64), n_tokens)
    (alone,) = await bench.known_answers([body], *OPTIONS)
    ids = [f"b-{i}" for i in range(runs)]
    async with bench.server(*OPTIONS) as server, tracing(server) as trace:
        call = await server.complete(body, request_id="a")
        await call.first_event()
        noticed = [await visit(server, chance, request_id, reset=True) for request_id in ids]
        decoding = not call.answer.done()
        answer = await call.answer
    report.figure("answer A", f"{len(answer.events):,} tokens in {answer.events[-1].at - call.sent_at:.1f} s")
    report.figure("the same alone", f"{alone.events[-1].at - alone.events[0].at:.1f} s after its first token")
    report.figure("largest difference of a logprob", logprob_gap(answer, alone))
    worst = report.times("from the reset until gone from the queue", noticed)
    report.check("A was decoding during all of them", decoding)
    report.check(f"A has exactly its {n_tokens:,} tokens", same_tokens(answer, alone))
    report.check(f"each is gone within {NOTICED_WITHIN * 1e3:.0f} ms", worst <= NOTICED_WITHIN * 1e3)
    strangers = [step.number for step in trace.steps if set(step.tokens) != {"a"}]
    report.check("every step is A's alone", not strangers, strangers[:5])
    judge_visitors(report, server, trace, ids)
    return report
