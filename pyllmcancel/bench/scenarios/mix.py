"""A load in which a chosen share of the clients hangs up, as in AIPerf's request cancellation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyllmcancel.bench.plan import (
    Make,
    PlannedRequest,
    PlanOptions,
    make_plan,
    make_warmup,
    run_arrivals,
    run_closed_loop,
)
from pyllmcancel.bench.workbench import Run, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class MixOptions:
    """The options of the mix.

    Attributes
    ----------
    concurrency
        The number of clients of the closed loop; if `plan` has a rate, it applies to the warm-up only.
    supersede_keys
        The number of supersede keys that the clients share: client k has key k modulo this; 0: no keys.
    wait_for_rest
        With one client and a process id: wait after each hang-up until the server is idle, and record how long that
        took.
    """

    plan: PlanOptions
    concurrency: int = 1
    supersede_keys: int = 0
    wait_for_rest: bool = True

    @property
    def one_at_a_time(self) -> bool:
        return self.concurrency == 1 and self.plan.rate is None


async def run(bench: Workbench, options: MixOptions) -> Run:
    """Send the plan's requests. The warm-up comes first, and is not part of the result."""
    warmup, plan = make_warmup(options.plan), make_plan(options.plan)
    keys = [bench.new_key() for _ in range(options.supersede_keys)]
    bench.progress.begin("prompts", 0)
    texts = {request: await bench.prompt(request.prompt_tokens, _name(request, options)) for request in warmup + plan}
    if warmup:
        bench.progress.begin("warm-up", len(warmup))
        unmeasured = Run("warm-up", {}, began_at=0.0)
        await run_closed_loop(warmup, options.concurrency, _maker(bench, unmeasured, options, texts, keys))
        await bench.settle()
    async with bench.recording("mix", options) as measured:
        bench.progress.begin(f"{options.plan.percent:g} % cancelled", len(plan))
        make = _maker(bench, measured, options, texts, keys)
        if options.plan.rate is None:
            await run_closed_loop(plan, options.concurrency, make)
        else:
            await run_arrivals(plan, options.supersede_keys, make)
    measured.figures["chosen"] = sum(request.cut_after is not None for request in plan)
    return measured


def _name(request: PlannedRequest, options: MixOptions) -> str:
    # Each percentage has other prompts: within a sweep the server must not find them cached.
    return f"{'warm-up' if request.warmup else 'mix'} {options.plan.percent} {request.number}"


def _maker(
    bench: Workbench,
    run: Run,
    options: MixOptions,
    texts: Mapping[PlannedRequest, str],
    keys: Sequence[str],
) -> Make:
    async def make(request: PlannedRequest, lane: int) -> None:
        exchange = await bench.ask(
            run,
            texts[request],
            request.max_tokens,
            cut_after=request.cut_after,
            supersede=keys[lane % len(keys)] if keys else None,
            lane=lane,
            label="mix",
        )
        if options.one_at_a_time and options.wait_for_rest:
            await bench.note_stop(run, exchange)

    return make
