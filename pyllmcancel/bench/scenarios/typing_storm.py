"""A completion at every key typed, and the time to the first token of the last one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from pyllmcancel.bench.client import Call, Outcome
from pyllmcancel.bench.percentiles import median
from pyllmcancel.bench.workbench import Run, Workbench


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingStormOptions:
    """The options of the typing.

    Attributes
    ----------
    interval
        Seconds between two keys.
    differ
        ``head``: the prompts have nothing in common, as when an editor puts its newest context first; ``tail``: each
        prompt is the previous one and a word more.
    sockets
        ``kept``: the client leaves old connections open, and only the key says that they are obsolete; ``closed``: the
        client hangs up on the old request when it sends the new one.
    supersede
        True if the requests carry a supersede key.
    """

    keys: int = 8
    interval: float = 0.3
    prompt_tokens: int = 700
    output_tokens: int = 16
    differ: Literal["head", "tail"] = "head"
    sockets: Literal["kept", "closed"] = "kept"
    supersede: bool = True
    runs: int = 1


async def run(bench: Workbench, options: TypingStormOptions) -> Run:
    """Run one request alone, then the storm; repeat both."""
    async with bench.recording("typing-storm", options) as run:
        bench.progress.begin("typing", options.runs * (options.keys + 1))
        alone, storm = [], []
        for number in range(options.runs):
            prompt = await bench.prompt(options.prompt_tokens, f"alone {number}")
            keys = await _prompts(bench, options, number)
            exchange = await bench.ask(run, prompt, options.output_tokens, label="alone", stream=True)
            alone.append(exchange.ttft)
            await bench.settle()
            storm.append(await _storm(bench, run, options, keys))
            await bench.settle()
    _judge(run, alone, storm)
    return run


async def _storm(bench: Workbench, run: Run, options: TypingStormOptions, keys: list[str]) -> float | None:
    """Type; return the time to the last key's first token, None if there was none."""
    shared = bench.new_key() if options.supersede else None
    loop = asyncio.get_running_loop()
    began, calls = loop.time(), list[Call]()
    for key, prompt in enumerate(keys):
        await asyncio.sleep(began + key * options.interval - loop.time())
        if options.sockets == "closed" and calls:
            calls[-1].cut()
        calls.append(
            bench.start(run, prompt, options.output_tokens, supersede=shared, label=f"key {key}", lane=key, stream=True)
        )
    last = await calls[-1].ended()
    for call in calls:
        call.cut()
        bench.progress.count(await call.ended())
    return last.ttft


async def _prompts(bench: Workbench, options: TypingStormOptions, number: int) -> list[str]:
    if options.differ == "head":
        return [await bench.prompt(options.prompt_tokens, f"storm {number} key {key}") for key in range(options.keys)]
    words = (await bench.prompt(options.prompt_tokens, f"storm {number}")).split()
    return [" ".join(words[: max(1, len(words) - missing)]) for missing in reversed(range(options.keys))]


def _judge(run: Run, alone: list[float | None], storm: list[float | None]) -> None:
    figures = run.figures
    figures["ttft_alone_s"] = median(alone)
    figures["ttft_last_key_s"] = median(storm)
    if figures["ttft_alone_s"] and figures["ttft_last_key_s"]:
        figures["ratio"] = figures["ttft_last_key_s"] / figures["ttft_alone_s"]
    keys = [entry for entry in run.exchanges if entry.ask.label != "alone"]
    figures["keys_answered"] = sum(entry.outcome is Outcome.OK for entry in keys)
    figures["keys_superseded"] = sum(entry.error == "superseded" for entry in keys)
    figures["keys_hung_up"] = sum(entry.hung_up for entry in keys)
