"""Stop in the middle of a long prompt, then send another request, and measure the time to its first token."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pyllmcancel.bench.percentiles import median
from pyllmcancel.bench.workbench import Run, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAfterStopOptions:
    """The options of the request that is stopped, and of the request that comes next.

    Attributes
    ----------
    stop_after
        Seconds from "fully sent" to the stop; the prompt must take longer than this.
    """

    prompt_tokens: int = 2000
    stop_after: float = 1.0
    next_prompt_tokens: int = 16
    output_tokens: int = 8
    runs: int = 5


async def run(bench: Workbench, options: NextAfterStopOptions) -> Run:
    """Run the short request alone, then after a stop; repeat both."""
    alone, after, in_prefill = list[float | None](), list[float | None](), 0
    async with bench.recording("next-after-stop", options) as run:
        bench.progress.begin("stop, and next", options.runs * 3)
        for number in range(options.runs):
            prompt = await bench.prompt(options.next_prompt_tokens, f"alone {number}")
            alone.append((await bench.ask(run, prompt, options.output_tokens, label="alone", stream=True)).ttft)
            await bench.settle()
            seconds, stopped_in_prefill = await _stop_and_ask(bench, run, options, number)
            after.append(seconds)
            in_prefill += stopped_in_prefill
            await bench.settle()
    run.figures |= {
        "ttft_alone_s": median(alone),
        "stop_to_next_token_s": median(after),
        "stop_to_next_token_worst_s": max((value for value in after if value is not None), default=None),
        "stopped_in_prefill": f"{in_prefill} of {options.runs}",
    }
    return run


async def _stop_and_ask(
    bench: Workbench, run: Run, options: NextAfterStopOptions, number: int
) -> tuple[float | None, bool]:
    """Return the seconds from the stop to the next request's first token, and whether the prompt was under way at
    the stop.
    """
    long_prompt = await bench.prompt(options.prompt_tokens, f"long {number}")
    short_prompt = await bench.prompt(options.next_prompt_tokens, f"next {number}")
    long = bench.start(run, long_prompt, options.output_tokens, label="long", stream=True)
    await long.sent()
    await asyncio.wait({asyncio.ensure_future(long.ended())}, timeout=options.stop_after)
    stopped_at = long.cut()
    following = bench.start(run, short_prompt, options.output_tokens, label="next", lane=1, stream=True)
    stopped = await long.ended()
    bench.progress.count(stopped)
    answer = await following.ended()
    bench.progress.count(answer)
    in_prefill = stopped.outcome == "cancelled" and not stopped.token_at
    return answer.token_at[0] - stopped_at if answer.token_at else None, in_prefill
