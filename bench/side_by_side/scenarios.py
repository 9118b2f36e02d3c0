"""A typing storm, with and without a key of superseding; and a stop in a long prompt, then another request."""

from __future__ import annotations

import asyncio
from collections import Counter

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Call, Outcome
from pyllmcancel.bench.percentiles import median

RUNS = 2
KEYS, INTERVAL = 8, 0.3  # keys typed, and seconds from one to the next
TYPED_PROMPT, TYPED_ANSWER = 700, 16
LONG_PROMPT, STOP_AFTER = 2000, 1.0  # the prompt takes longer than the seconds to the stop
NEXT_PROMPT, NEXT_ANSWER = 16, 8


async def measure_superseding(subject: Subject) -> Figures:
    """Eight prompts 0.3 s apart under one key of superseding, sockets kept open: the last one's first token."""
    if not subject.running.peer.supersede_headers:
        return {"not_measured": "no request of it supersedes another"}
    return await storm(subject, subject.bench.new_key())


async def measure_plain(subject: Subject) -> Figures:
    """The same storm without a key."""
    return await storm(subject, None)


async def storm(subject: Subject, key: str | None) -> Figures:
    """Send one request alone, then a completion at every key typed; the prompts have nothing in common.

    `key` is the supersede key. The client leaves old connections open until the last answer is there.
    """
    alone = await alone_token(subject, TYPED_PROMPT, TYPED_ANSWER)
    prompts = [await subject.prompt(TYPED_PROMPT) for _ in range(KEYS)]
    loop = asyncio.get_running_loop()
    began, calls = loop.time(), list[Call]()
    for number, prompt in enumerate(prompts):
        await asyncio.sleep(began + number * INTERVAL - loop.time())
        calls.append(subject.start(prompt, TYPED_ANSWER, supersede=key))
    last = (await calls[-1].ended()).ttft
    for call in calls:
        call.cut()
    ended = [await call.ended() for call in calls]
    await subject.settle()
    return {
        "ttft_alone_s": alone,
        "ttft_last_key_s": last,
        "ratio": last / alone if last and alone else None,
        "keys_answered": sum(entry.outcome is Outcome.OK for entry in ended),
        "keys_superseded": sum(entry.error == "superseded" for entry in ended),
        "keys_hung_up": sum(entry.hung_up for entry in ended),
        "errors": dict(Counter(entry.error for entry in ended if entry.outcome is Outcome.ERROR)),
    }


async def measure_next(subject: Subject) -> Figures:
    """Stop in the middle of a long prompt, then an unrelated request: its first token.

    Single values stand beside the medians, so that rounds can be taken together.
    """
    alone, after, in_prefill, runs = list[float | None](), list[float | None](), 0, subject.times(RUNS)
    for _ in range(runs):
        alone.append(await alone_token(subject, NEXT_PROMPT, NEXT_ANSWER))
        long_prompt, short_prompt = await subject.prompt(LONG_PROMPT), await subject.prompt(NEXT_PROMPT)
        long = subject.start(long_prompt, NEXT_ANSWER)
        await long.sent()
        await asyncio.wait({asyncio.ensure_future(long.ended())}, timeout=STOP_AFTER)
        stopped_at = long.cut()
        following = subject.start(short_prompt, NEXT_ANSWER)
        stopped, answer = await long.ended(), await following.ended()
        after.append(answer.token_at[0] - stopped_at if answer.token_at else None)
        in_prefill += stopped.outcome is Outcome.CANCELLED and not stopped.token_at
        await subject.settle()
    return {
        "ttft_alone_s": median(alone),
        "stop_to_next_token_s": median(after),
        "stopped_in_prefill": f"{in_prefill} of {runs}",
        "stop_to_first_token": [value for value in after if value is not None],
    }


async def alone_token(subject: Subject, n_prompt: int, n_answer: int) -> float | None:
    """Return the seconds to the first token of a request that has the server to itself."""
    exchange = await subject.start(await subject.prompt(n_prompt), n_answer).ended()
    await subject.settle()
    return exchange.ttft


MEASUREMENTS = (
    Measurement(name="typing-storm", measure=measure_superseding, rounds=3),
    Measurement(name="typing-storm-no-key", measure=measure_plain, rounds=1),
    Measurement(name="stop-then-next", ctx_size=16_384, measure=measure_next),
)
