"""A thousand cancels from every source in every phase, among requests that must not notice."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from bench.scenarios.cancel_sources import PHASES, REASONS, Outcome, Plan, carry_out
from bench.scenarios.footprint import footprint, judge_footprints
from bench.scenarios.harness import Bench, Body, Server, completion, same_tokens
from bench.scenarios.http_client import Answer
from bench.scenarios.report import Report

RUNS = 1000
WARM_UP = 1000  # until every cell of the context has been touched, and every table is full
CLIENTS = 16
CONTROL_EVERY = 4
N_CONTROLS, N_CANDIDATES, CONTROL_TOKENS = 8, 48, 8
ALLOWED_MIB = 4.0


@dataclass(slots=True)
class Control:
    """A request whose tokens are known."""

    body: Body
    known: Answer


@dataclass(slots=True)
class Traffic:
    """Sixteen clients' work; everything here belongs to the event loop."""

    server: Server
    chance: random.Random
    controls: list[Control]
    outcomes: list[Outcome] = field(default_factory=list)
    control_ids: list[str] = field(default_factory=list)
    wrong_controls: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def run(self, n_cancels: int) -> list[Outcome]:
        """Go on until so many requests have ended as cancelled; returns what became of each plan."""
        begin = len(self.outcomes)
        cells = [(source, phase) for source in REASONS for phase in PHASES if (source, phase) != ("hold", "finishing")]
        plans = itertools.chain.from_iterable(self.chance.sample(cells, len(cells)) for _ in itertools.count())

        def cancelled() -> int:
            return sum(outcome.cancelled for outcome in self.outcomes[begin:])

        async def client() -> None:
            while cancelled() < n_cancels:
                await self.one(*next(plans))

        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(client())
        return self.outcomes[begin:]

    async def one(self, source: str, phase: str) -> None:
        number = next(self.numbers)
        if number % CONTROL_EVERY == 0:
            await self.control(None)
        # The end of an answer can be aimed at only by counting the events of a stream.
        stream = phase == "finishing" or self.chance.random() < 0.5
        plan = Plan(f"v-{number}", source, phase, stream)
        self.outcomes.append(await carry_out(plan, self.server, self.chance, self.control))

    async def control(self, session: str | None) -> None:
        """A request that nobody cancels."""
        control = self.chance.choice(self.controls)
        request_id = f"control-{len(self.control_ids)}"
        self.control_ids.append(request_id)
        call = await self.server.complete(control.body, request_id=request_id, session=session)
        if not same_tokens(await call.answer, control.known):
            self.wrong_controls.append(request_id)


async def run(bench: Bench) -> Report:
    """1,000 cancels from 16 clients, every source, every phase: none lost, none astray, nothing left behind."""
    report = Report("thousand")
    chance = random.Random(bench.seed)
    n_cancels = bench.runs or RUNS
    controls = await choose_controls(bench, chance)
    async with bench.server("--parallel", "4", "--max-queue", "64") as server:
        traffic = Traffic(server, chance, controls)
        await traffic.run(min(WARM_UP, n_cancels))
        before = await footprint(server)
        began = time.monotonic()
        outcomes = await traffic.run(n_cancels)
        seconds = time.monotonic() - began
        after = await footprint(server)
    cancelled = sum(outcome.cancelled for outcome in outcomes)
    report.figure("cancels", f"{cancelled:,} in {seconds:.0f} s, {len(outcomes) - cancelled} ends came first")
    report.figure("controls", f"{len(traffic.control_ids)} of {len(controls)} kinds")
    aimed = [outcome.cancelled for outcome in outcomes if outcome.plan.phase == "finishing"]
    report.figure("aimed at the last step", f"{len(aimed)}, of which {sum(aimed)} came before the end")
    tabulate(report, outcomes)
    judge(report, server, traffic, outcomes)
    judge_footprints(report, before, after, ALLOWED_MIB)
    return report


async def choose_controls(bench: Bench, chance: random.Random) -> list[Control]:
    """Requests whose every token is well ahead of the second: no rounding in a shared batch can change them."""
    async with bench.server() as server:
        prompts = [server.prompt(chance, chance.randrange(16, 48)) for _ in range(N_CANDIDATES)]
    bodies = [completion(prompt, CONTROL_TOKENS, stream=i % 2 == 0, logprobs=2) for i, prompt in enumerate(prompts)]
    answers = await bench.known_answers(bodies)
    candidates = [Control(body, answer) for body, answer in zip(bodies, answers, strict=True)]
    return sorted(candidates, key=lambda candidate: margin(candidate.known), reverse=True)[:N_CONTROLS]


def margin(answer: Answer) -> float:
    """The least lead, in logprob, of a token over the second."""
    leads = []
    for payload in answer.payloads:
        for choice in payload["choices"]:
            for top in choice["logprobs"]["top_logprobs"]:
                best, second = sorted(top.values(), reverse=True)[:2] if len(top) > 1 else (0.0, 0.0)
                leads.append(best - second)
    return min(leads)


def tabulate(report: Report, outcomes: list[Outcome]) -> None:
    """How often each source met a request in each phase."""
    phases = ("waiting", "prefill", "decode")
    counts = Counter((outcome.plan.source, outcome.ending.phase) for outcome in outcomes if outcome.cancelled)
    ended_first = Counter(outcome.plan.source for outcome in outcomes if not outcome.cancelled)
    rows = [(source, *(counts[source, phase] for phase in phases), ended_first[source]) for source in REASONS]
    report.table(("source", *(f"in {phase}" for phase in phases), "end came first"), rows)
    possible = [(source, phase) for source in REASONS for phase in phases if source != "hold"]
    missed = [cell for cell in possible if not counts[cell]]
    report.check("every source met requests in every phase", not missed, missed)


def judge(report: Report, server: Server, traffic: Traffic, outcomes: list[Outcome]) -> None:
    faults = [f"{outcome.plan}: {fault}" for outcome in outcomes for fault in outcome.faults]
    lost = [fault for fault in faults if "lost cancel" in fault]
    report.check("0 lost cancels", not lost, lost[:3])
    report.check("every ending is told alike by log, client and endpoint", not faults, faults[:3])
    wrong = traffic.wrong_controls
    report.check("0 wrong targets: every control has its tokens", not wrong, wrong[:5])
    ids = [*(outcome.plan.id for outcome in traffic.outcomes), *traffic.control_ids]
    several = [request_id for request_id in ids if len(server.log.endings(request_id)) != 1]
    report.check(f"exactly one ending line for each of {len(ids):,} requests", not several, several[:5])
    report.check_log(server.log)
