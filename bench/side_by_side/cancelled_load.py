"""A load of which a part hangs up: what the others get of it, and what is computed for those who have left."""

from __future__ import annotations

import time
from functools import partial

from bench.side_by_side.measurement import Figures, Measurement, Subject
from bench.side_by_side.throughput import speed_figures
from pyllmcancel.bench.client import Exchange, Outcome
from pyllmcancel.bench.plan import Delay, Length, PlannedRequest, PlanOptions, make_plan
from pyllmcancel.bench.runner import run_closed_loop
from pyllmcancel.bench.server_truth import cpu_seconds

CLIENTS = 8
REQUESTS = 24
PERCENTS = (0, 10, 30, 50)
LEAVE_AFTER = 1.0
PROMPT, ANSWER = Length(100), Length(40)
ALONE_REQUESTS = 10
ALONE_PROMPT = Length(200)


def plan_of(subject: Subject, requests: int, percent: float, prompt: Length) -> tuple[PlannedRequest, ...]:
    options = PlanOptions(
        requests=subject.times(requests, 4),
        percent=percent,
        delay=Delay(LEAVE_AFTER, LEAVE_AFTER),
        prompt=prompt,
        output=ANSWER,
    )
    return make_plan(options)


async def measure_goodput(subject: Subject, *, percent: float) -> Figures:
    """Tokens a second of those who stay, where this share of the requests is cut."""
    plan = plan_of(subject, REQUESTS, percent, PROMPT)
    texts = {request.number: await subject.prompt(request.prompt_tokens) for request in plan}
    exchanges: list[Exchange] = []

    async def make(request: PlannedRequest, _: int) -> None:
        call = subject.start(texts[request.number], request.max_tokens, cut_after=request.cut_after)
        exchanges.append(await call.ended())

    await subject.settle()
    began, used = time.monotonic(), cpu_seconds(subject.pid)
    await run_closed_loop(plan, CLIENTS, make)
    figures = speed_figures(exchanges, time.monotonic() - began)
    await subject.settle()
    cancelled = sum(entry.outcome is Outcome.CANCELLED for entry in exchanges)
    return figures | {"cancelled": cancelled, "cpu_seconds": cpu_seconds(subject.pid) - used}


async def measure_waste(subject: Subject) -> Figures:
    """CPU time used after each hang-up until the server rests, over all that it used.

    One client, so that whatever is computed after a hang-up is computed for nobody: this needs no word of the server's.
    """
    plan = plan_of(subject, ALONE_REQUESTS, 50, ALONE_PROMPT)
    texts = {request.number: await subject.prompt(request.prompt_tokens) for request in plan}
    await subject.settle()
    used, wasted, n_cancelled = cpu_seconds(subject.pid), 0.0, 0
    for request in plan:
        call = subject.start(texts[request.number], request.max_tokens, cut_after=request.cut_after)
        exchange = await call.ended()
        if exchange.outcome is Outcome.CANCELLED and exchange.ended_at is not None:
            wasted += (await subject.rest_after(exchange.ended_at)).cpu_seconds
            n_cancelled += 1
    total = cpu_seconds(subject.pid) - used
    return {"cancelled": n_cancelled, "requests": len(plan), "cpu_seconds": total, "cpu_after_leaving": wasted}


MEASUREMENTS = (
    *(
        Measurement(
            name=f"goodput-{percent}",
            parallel=CLIENTS,
            rounds=5,
            measure=partial(measure_goodput, percent=percent),
        )
        for percent in PERCENTS
    ),
    Measurement(name="cpu-after-leaving", measure=measure_waste, rounds=1),
)
