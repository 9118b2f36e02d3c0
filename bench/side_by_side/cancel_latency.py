"""From the client's close until the server's process rests, one request in flight: phase by phase, streaming or not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Call, Outcome

MAX_CLOSES = 30
SECONDS = 14.0
LONG_PROMPT, SHORT_PROMPT = 1024, 16
LONG_ANSWER = 96


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of leaving; `after` is the range of seconds from "fully sent" to the close."""

    name: str
    n_prompt: int
    stream: bool
    after: tuple[float, float]


KINDS = (
    Kind("prefill, streaming", LONG_PROMPT, True, (0.3, 1.5)),
    Kind("prefill, whole", LONG_PROMPT, False, (0.3, 1.5)),
    Kind("decode, streaming", SHORT_PROMPT, True, (0.1, 0.6)),
    Kind("decode, whole", SHORT_PROMPT, False, (0.7, 1.2)),
)


async def measure(subject: Subject) -> Figures:
    """One client leaves, in prefill or decode, streaming or not: from its close until the server's process rests.

    Each kind in its turn, so that a change of the machine's pace falls upon all of them.
    """
    found: Figures = {kind.name: {"latency": [], "cpu": [], "missed": 0} for kind in KINDS}
    for _ in subject.attempts(MAX_CLOSES, SECONDS * len(KINDS)):
        for kind in KINDS:
            await leave_once(subject, kind, found[kind.name])
    return found


async def leave_once(subject: Subject, kind: Kind, found: Figures) -> None:
    """Send a request, leave in the phase that is wanted, and wait until the server rests."""
    prompt, delay = await subject.prompt(kind.n_prompt), subject.chance.uniform(*kind.after)
    await subject.settle()
    call = subject.start(prompt, LONG_ANSWER, stream=kind.stream)
    if not await in_phase(call, kind, delay):
        await call.ended()
        found["missed"] += 1
        return
    left_at = call.cut()
    stop = await subject.rest_after(left_at)
    exchange = await call.ended()
    if exchange.outcome is not Outcome.CANCELLED:
        found["missed"] += 1
        return
    found["latency"].append(stop.seconds)
    found["cpu"].append(stop.cpu_seconds)


async def in_phase(call: Call, kind: Kind, delay: float) -> bool:
    """Wait for the moment to leave; False if the request is over, or in another phase than it should be."""
    streams_answer = kind.stream and kind.n_prompt == SHORT_PROMPT
    begun = await (call.first_token() if streams_answer else call.sent())
    await asyncio.sleep(delay)
    early = streams_answer or not call.exchange.token_at
    return begun and early and not call.is_over


MEASUREMENTS = (Measurement(name="cancel-latency", parallel=4, measure=measure),)
