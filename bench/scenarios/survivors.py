"""Three in flight, one cancelled in its prompt: the other two do not notice.

Tokens can be compared exactly where a sequence's logits do not depend on who shares its batch. Whether that is so for
the model at hand is tried first, without any cancel. Where it is not, rounding may decide between two tokens that are
as good as equal, and the logprobs are compared instead: a harmed survivor's would be far off.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from bench.scenarios.harness import Bench, Body, Server, completion, logprob_gap, same_tokens, tracing
from bench.scenarios.http_client import Answer, Call
from bench.scenarios.report import Report

RUNS = 10
ANSWER = 48
VICTIM_TOKENS = 1600
ROUNDING = 2.0  # times what a batch without any cancel changes: more than that is not rounding


@dataclass(slots=True)
class Findings:
    """Of all runs: `latencies` from the close until no step contains the victim any more, in seconds.

    `gap` is the largest difference of a survivor's logprob from its answer alone, `gap_in_company` the same of requests
    that share a batch and are left in peace.
    """

    latencies: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)
    phases: list[str | None] = field(default_factory=list)
    aborted: list[bool] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)
    gap: float = 0.0
    gap_in_company: float = 0.0


async def run(bench: Bench) -> Report:
    """A client leaves in mid-prompt: its two neighbours get the tokens that they get alone."""
    report = Report("survivors")
    chance = random.Random(bench.seed)
    async with bench.server() as server:
        size = min(VICTIM_TOKENS, server.n_ctx - 64)
        runs = [
            [completion(server.prompt(chance, chance.randrange(24, 96)), ANSWER) for _ in range(2)]
            for _ in range(bench.runs or RUNS)
        ]
    known = await bench.known_answers([body for pair in runs for body in pair])
    findings = Findings(gap_in_company=await gap_in_company(bench, runs, known))
    async with bench.server() as server:
        await server.pace(chance)
        for number, bodies in enumerate(runs):
            answers = await three_in_flight(server, chance, findings, bodies, size)
            for answer, alone in zip(answers, known[2 * number :], strict=False):
                findings.equal.append(same_tokens(answer, alone))
                findings.gap = max(findings.gap, logprob_gap(answer, alone))
    judge(report, findings, size)
    report.check("no warning in the log", not server.log.complaints(), server.log.complaints()[:3])
    return report


async def gap_in_company(bench: Bench, runs: list[list[Body]], known: list[Answer]) -> float:
    """Largest difference of a logprob between requests that share batches, nobody cancelled, and the same alone."""
    async with bench.server() as server:
        gap = 0.0
        for number, pair in enumerate(runs):
            calls = [await server.complete(body) for body in pair]
            for call, alone in zip(calls, known[2 * number :], strict=False):
                gap = max(gap, logprob_gap(await call.answer, alone))
    return gap


async def three_in_flight(
    server: Server, chance: random.Random, findings: Findings, bodies: list[Body], size: int
) -> list[Answer]:
    """Two that stay, one that leaves; in every other run the victim is the first to come."""
    number = len(findings.phases)
    async with tracing(server) as trace:
        victim_id = f"victim-{number}"
        victim_body = completion(server.prompt(chance, size), 16, stream=number % 4 < 2)
        victim_first = number % 2 == 1
        victim = await server.complete(victim_body, request_id=victim_id) if victim_first else None
        calls = [await server.complete(body, request_id=f"stays-{number}-{i}") for i, body in enumerate(bodies)]
        if victim is None:
            await calls[0].first_event()
            victim = await server.complete(victim_body, request_id=victim_id)
        left_at = await leave_in_prompt(server, chance, victim)
        ending = await server.log.ending(victim_id)
        answers = [await call.answer for call in calls]
    findings.latencies.append(trace.quiet_after(victim_id, left_at))
    findings.reported.append((await server.request(victim_id))["cancel_latency_ms"] / 1e3)
    findings.phases.append(f"{ending.reason} in {ending.phase}")
    findings.aborted.append(any(victim_id in step.tokens for step in trace.aborted()))
    return answers


async def leave_in_prompt(server: Server, chance: random.Random, victim: Call) -> float:
    """Close the socket somewhere in a step of the prompt's first half; returns the monotonic time."""
    await server.until(victim.id, lambda entry: entry["phase"] != "waiting" and entry["prompt_tokens_done"] > 0)
    await asyncio.sleep(chance.uniform(0.0, 0.02))
    return victim.leave(reset=chance.random() < 0.5)


def judge(report: Report, findings: Findings, size: int) -> None:
    report.figure("victim's prompt", f"{size:,} tokens")
    report.times("from the close until it is in no step", findings.latencies)
    report.times("the server's own cancel latency", findings.reported)
    report.figure("steps aborted for it", f"{sum(findings.aborted)} of {len(findings.aborted)}")
    report.figure("largest difference of a survivor's logprob", findings.gap)
    report.figure("the same in a batch without a cancel", findings.gap_in_company)
    report.figure("survivors with the tokens they have alone", f"{sum(findings.equal)} of {len(findings.equal)}")
    expected = {"disconnect in prefill"}
    report.check("every victim ended as disconnect in prefill", set(findings.phases) == expected, findings.phases)
    if findings.gap_in_company == 0.0:
        report.check("all survivors have the tokens they have alone", all(findings.equal), findings.equal)
    else:
        limit = ROUNDING * findings.gap_in_company
        report.check("no survivor differs by more than rounding does", findings.gap <= limit, findings.gap)
