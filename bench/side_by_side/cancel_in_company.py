"""One of eight clients leaves: how many tokens are still computed for it, and how long the server knows of it.

No OpenAI-compatible answer reports this, so the server is asked: by its record of steps where it has one, by its log
else.
"""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Call

CLIENTS = 8
SHORT_PROMPT, LONG_ANSWER = 16, 400
MAX_CLOSES, SECONDS = 15, 14.0
LONGEST_WAIT = 30.0
STEPS_SHOWN = 100


async def measure(subject: Subject) -> Figures:
    """One of eight streams is cut: the tokens still computed for it, and how long the server knows of it."""
    calls = [await subject.begin(SHORT_PROMPT, LONG_ANSWER) for _ in range(CLIENTS)]
    found: Figures = {"tokens_after": [], "noticed_after": [], "steps_begun_after": []}
    try:
        for _ in subject.attempts(MAX_CLOSES, SECONDS):
            leaver = calls.pop(0)
            # Anywhere in a step, and not all at the same place of it.
            await asyncio.sleep(subject.chance.uniform(0.2, 0.5))
            if leaver.is_over:
                raise RuntimeError(f"a stream of {LONG_ANSWER} tokens was over: {leaver.exchange.error}")
            await leave(subject, leaver, found)
            calls.append(await subject.begin(SHORT_PROMPT, LONG_ANSWER))
    finally:
        for call in calls:
            call.cut()
        await subject.settle()
    return found


async def leave(subject: Subject, call: Call, found: Figures) -> None:
    log, peer = subject.running.log, subject.running.peer
    left_at = call.cut()
    if peer.left is not None:
        lines = await asyncio.to_thread(log.wait_for, peer.left, left_at, LONGEST_WAIT)
        found["noticed_after"] += [at - left_at for at, _ in lines]
    # Twice the time between two of its tokens.
    await asyncio.sleep(2 * statistics.fmean(call.exchange.itl or [0.1]))
    steps = await subject.client.fetch_json("GET", f"/v1/steps?last={STEPS_SHOWN}")
    if steps is not None:
        own = steps_of(steps["data"], call.exchange.ask.request_id)
        found["tokens_after"].append(sum(n_tokens for _, ended, n_tokens in own if ended > left_at))
        found["steps_begun_after"].append(sum(began > left_at for began, _, _ in own))
        return
    if peer.released is not None:
        released = await asyncio.to_thread(log.wait_for, peer.released, left_at, LONGEST_WAIT)
        found["tokens_after"] += [tokens_by_log(call, int(match["n_tokens"])) for _, match in released]


def steps_of(steps: list[dict[str, Any]], request_id: str) -> list[tuple[float, float, int]]:
    """Begin, end and tokens of a request's steps; server and client share the machine's monotonic clock."""
    return [
        (step["started_at"], step["started_at"] + step["seconds"], entry["n_tokens"])
        for step in steps
        for entry in step["sequences"]
        if entry["request"] == request_id
    ]


def tokens_by_log(call: Call, n_tokens: int) -> int:
    """Tokens in the slot when it was given back, less those of the prompt and those that had reached the client.

    The last token that is sampled is never computed, so the slot has one less than was generated.
    """
    return n_tokens + 1 - SHORT_PROMPT - len(call.exchange.token_at)


MEASUREMENTS = (Measurement(name="cancel-in-company", parallel=CLIENTS, measure=measure),)
