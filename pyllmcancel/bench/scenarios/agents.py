"""An agent that waits for one long answer, while its auxiliary requests come and are dropped."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from pyllmcancel.bench.client import Call, Exchange, Outcome
from pyllmcancel.bench.percentiles import percentile
from pyllmcancel.bench.plan import Delay
from pyllmcancel.bench.workbench import Run, Workbench

WITHIN_A_SECOND = Delay(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsOptions:
    """The options of the long request, and of those beside it.

    Attributes
    ----------
    helpers
        The number of clients that send auxiliary requests, one after the other, until the long answer is complete.
    percent
        The percentage of auxiliary requests that are dropped, after `delay`.
    """

    prompt_tokens: int = 300
    output_tokens: int = 200
    helpers: int = 2
    helper_prompt_tokens: int = 100
    helper_output_tokens: int = 32
    percent: float = 50.0
    delay: Delay = WITHIN_A_SECOND
    seed: int = 42


async def run(bench: Workbench, options: AgentsOptions) -> Run:
    """Run the long request alone, then the same one in company."""
    prompt = await bench.prompt(options.prompt_tokens, "long")
    async with bench.recording("agents", options) as run:
        bench.progress.begin("long answer", 2)
        alone = await bench.ask(run, prompt, options.output_tokens, label="alone", stream=True)
        await bench.settle()
        call = bench.start(run, prompt, options.output_tokens, label="long", stream=True)
        async with asyncio.TaskGroup() as group:
            for number in range(options.helpers):
                group.create_task(_help(bench, run, options, number, call))
            beside = await call.ended()
            bench.progress.count(beside)
    _judge(run, alone, beside)
    return run


async def _help(bench: Workbench, run: Run, options: AgentsOptions, number: int, long: Call) -> None:
    chance = random.Random(f"{options.seed}: helper {number}")
    supersede, count = bench.new_key(), 0
    await long.first_token()
    while not long.is_over:
        cut, delay = chance.random() < options.percent / 100.0, options.delay.draw(chance)
        prompt = await bench.prompt(options.helper_prompt_tokens, f"helper {number} {count}")
        auxiliary = bench.start(
            run,
            prompt,
            options.helper_output_tokens,
            cut_after=delay if cut else None,
            label="auxiliary",
            supersede=supersede,
            lane=number + 1,
        )
        await auxiliary.ended()
        count += 1


def _judge(run: Run, alone: Exchange, beside: Exchange) -> None:
    auxiliary = [entry for entry in run.exchanges if entry.ask.label == "auxiliary"]
    run.figures |= {
        "long_answer": beside.outcome,
        "long_answer_unchanged": None not in (alone.text_sha256, beside.text_sha256)
        and alone.text_sha256 == beside.text_sha256,
        "auxiliary": len(auxiliary),
        "auxiliary_hung_up": sum(entry.hung_up for entry in auxiliary),
        "auxiliary_failed": sum(entry.outcome is Outcome.ERROR for entry in auxiliary),
    }
    for name, exchange in (("alone", alone), ("beside", beside)):
        for percent in (50, 99):
            seconds = percentile(exchange.itl, percent)
            run.figures[f"itl_{name}_p{percent}_ms"] = None if seconds is None else seconds * 1e3
