"""Clients that wait in the queue hang up while another's answer streams: when does the server drop them?

Two things are measured. Where the server has a gauge of waiting requests: how long it goes on counting the one that
has left. On any server: a live request that comes after the dead ones; it must begin when the stream ends, and if the
server launches dead requests first, it begins later by what they cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyllmcancel.bench.client import Call
from pyllmcancel.bench.own_figures import read_metrics, requests_waiting
from pyllmcancel.bench.workbench import Run, Workbench

POLL_EVERY = 0.005  # from outside there is no event to wait for
QUEUED_WITHIN = 2.0
PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedHangUpOptions:
    """Who streams, and who waits.

    Attributes
    ----------
    streams
        Answers that keep the server busy: as many as it has slots.
    output_tokens
        Their length, long enough for all visitors.
    visitors
        Clients that queue up and hang up, one after the other.
    prompt_tokens
        The length of their prompts.
    """

    streams: int = 1
    output_tokens: int = 400
    visitors: int = 5
    prompt_tokens: int = 200


async def run(bench: Workbench, options: QueuedHangUpOptions) -> Run:
    async with bench.recording("queued-hang-up", options) as run:
        run.figures |= {"noticed_ms": [], "not_noticed_while_streaming": 0, "visitors_not_queued": 0}
        bench.progress.begin("queued hang-ups", options.streams + options.visitors + 2)
        probe = await bench.prompt(16, "probe alone")
        alone = (await bench.ask(run, probe, PROBE_TOKENS, label="alone", stream=True)).ttft
        streams = [await _stream(bench, run, options, number) for number in range(options.streams)]
        for number in range(options.visitors):
            await _visit(bench, run, options, number)
        last = bench.start(run, await bench.prompt(16, "probe"), PROBE_TOKENS, label="probe", stream=True)
        all_streaming = not any(call.is_over for call in streams)
        ended_at = [(await call.ended()).ended_at or 0.0 for call in streams]
        answer = await last.ended()
        for exchange in [*(call.exchange for call in streams), answer]:
            bench.progress.advance(exchange)
    run.figures |= {
        "streaming_all_the_while": all_streaming,
        "ttft_alone_s": alone,
        "stream_end_to_next_token_s": answer.token_at[0] - min(ended_at) if answer.token_at else None,
    }
    return run


async def _stream(bench: Workbench, run: Run, options: QueuedHangUpOptions, number: int) -> Call:
    """An answer that has begun."""
    prompt = await bench.prompt(16, f"stream {number}")
    call = bench.start(run, prompt, options.output_tokens, label="stream", lane=number, stream=True)
    await call.first_token()
    return call


async def _visit(bench: Workbench, run: Run, options: QueuedHangUpOptions, number: int) -> None:
    """Queue up, hang up, and watch the queue."""
    prompt = await bench.prompt(options.prompt_tokens, f"visitor {number}")
    before = await _waiting(bench)
    call = bench.start(run, prompt, PROBE_TOKENS, label="visitor", lane=options.streams)
    await call.sent()
    queued = before is not None and await _until(bench, lambda waiting: waiting > before, QUEUED_WITHIN)
    left_at = call.cut()
    if before is not None and not queued:
        run.figures["visitors_not_queued"] += 1
    elif before is not None and await _until(bench, lambda waiting: waiting <= before, 60.0):
        run.figures["noticed_ms"].append((time.monotonic() - left_at) * 1e3)
    elif before is not None:
        run.figures["not_noticed_while_streaming"] += 1
    bench.progress.advance(await call.ended())


async def _waiting(bench: Workbench) -> float | None:
    metrics = await read_metrics(bench.client)
    return None if metrics is None else requests_waiting(metrics)


async def _until(bench: Workbench, reached: Callable[[float], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        waiting = await _waiting(bench)
        if waiting is not None and reached(waiting):
            return True
        await asyncio.sleep(POLL_EVERY)
    return False
