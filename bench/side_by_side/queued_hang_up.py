"""Clients that wait in the queue leave while another one's answer streams: when does the server know?

The server's log is read, since asking it would be traffic, and traffic is what makes some servers notice, or not.
"""

from __future__ import annotations

import asyncio
import math
import statistics

from bench.side_by_side.measurement import Figures, Measurement, Subject

SHORT_PROMPT = 16
VISITORS = 5
# The stream is to last longer than all visits, on a fast machine too.
STREAM_SECONDS, MAX_TOKENS = 8.0, 1500
PACE_TOKENS = 24
WAIT, PAUSE = (0.2, 0.5), 0.5
LONGEST_WAIT = 60.0


async def measure(subject: Subject) -> Figures:
    """Clients leave the queue while a stream has the only slot: when the server's log says so."""
    words = subject.running.peer.left
    if words is None:
        return {"not_measured": "its log does not tell when a client has left the queue"}
    prompts = [await subject.prompt(SHORT_PROMPT) for _ in range(VISITORS)]
    streamer = await subject.begin(SHORT_PROMPT, await tokens_in(subject, STREAM_SECONDS))
    left_at = []
    for prompt in prompts:
        visitor = subject.start(prompt, 8)
        await visitor.sent()
        await asyncio.sleep(subject.chance.uniform(*WAIT))
        left_at.append(visitor.cut())
        await asyncio.sleep(PAUSE)
    streaming = not streamer.is_over
    stream = await streamer.ended()
    log = subject.running.log
    lines = await asyncio.to_thread(log.wait_for, words, left_at[0], LONGEST_WAIT, VISITORS)
    await subject.settle()
    return {
        # One line for each who left, and in their order: a queue is served from its head.
        "noticed_after": [at - left for (at, _), left in zip(lines, left_at, strict=False)],
        "never_noticed": VISITORS - len(lines),
        "streamed_all_the_while": streaming,
        "stream_seconds": (stream.ended_at or 0.0) - (stream.sent_at or 0.0),
    }


async def tokens_in(subject: Subject, seconds: float) -> int:
    """How many tokens of an answer take about so long, or `MAX_TOKENS`."""
    exchange = await subject.start(await subject.prompt(SHORT_PROMPT), PACE_TOKENS).ended()
    return min(MAX_TOKENS, math.ceil(seconds / statistics.fmean(exchange.itl)))


MEASUREMENTS = (Measurement(name="queued-hang-up", parallel=1, ctx_size=2048, measure=measure),)
