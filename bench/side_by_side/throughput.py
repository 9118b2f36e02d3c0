"""No cancels: tokens a second, time to the first token, between tokens and per token, at 1, 4 and 8 clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from bench.side_by_side.batched_bench import batched_bench
from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Exchange, Outcome

PROMPT, ANSWER = 100, 40
LONG_PROMPT, LONG_ANSWER = 800, 24
# Turns per number of clients: those of one client are the shortest, and a machine's pace changes within seconds.
ROUNDS = {1: 9, 4: 5, 8: 5}
# Requests per number of clients: four for each, so that what is slow at the beginning and at the end counts little.
REQUESTS = {1: 4, 4: 16, 8: 32}
LONG_CLIENTS = 4


async def closed_loop(subject: Subject, *, clients: int, requests: int, prompt: int, answer: int) -> Figures:
    """`clients` at once, each of which sends its next request when the last one is answered."""
    prompts = [await subject.prompt(prompt) for _ in range(subject.times(requests, clients))]
    await subject.settle()
    remaining = iter(prompts)
    exchanges: list[Exchange] = []

    async def client() -> None:
        for text in remaining:
            exchanges.append(await subject.start(text, answer).ended())  # noqa: PERF401 - others append too

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return speed_figures(exchanges, time.monotonic() - began)


def speed_figures(exchanges: Sequence[Exchange], seconds: float) -> Figures:
    """Of complete answers only; ITL is each single gap between two tokens, TPOT an answer's mean.

    `Exchange.token_at` has a time for each event with text, not for each token. An event that carries several tokens,
    be they parts of one character, counts the gap before it once and zero for its other tokens. Which event that was is
    not known: the zeros are for as many tokens as the answer has more than events.
    """
    answered = [entry for entry in exchanges if entry.outcome is Outcome.OK]
    return {
        "requests": len(exchanges),
        "errors": sum(entry.outcome is Outcome.ERROR for entry in exchanges),
        "tokens": sum(entry.n_tokens for entry in answered),
        "seconds": seconds,
        "tokens_per_second": sum(entry.n_tokens for entry in answered) / seconds,
        "ttft": [entry.ttft for entry in answered if entry.ttft is not None],
        "itl": [gap for entry in answered if entry.token_at for gap in token_gaps(entry)],
        "tpot": [time_per_token(entry) for entry in answered if entry.n_tokens > 1 and entry.token_at],
    }


def token_gaps(exchange: Exchange) -> list[float]:
    return exchange.itl + [0.0] * (exchange.n_tokens - len(exchange.token_at))


def time_per_token(exchange: Exchange) -> float:
    return (exchange.token_at[-1] - exchange.token_at[0]) / (exchange.n_tokens - 1)


def short(clients: int, requests: int) -> Measurement:
    return Measurement(
        name=f"throughput-{clients}",
        parallel=max(REQUESTS),
        rounds=ROUNDS[clients],
        measure=partial(closed_loop, clients=clients, requests=requests, prompt=PROMPT, answer=ANSWER),
        others={"llama-batched-bench": partial(batched_bench, n_prompt=PROMPT, n_answer=ANSWER, batch=clients)},
    )


MEASUREMENTS = (
    *(short(clients, requests) for clients, requests in REQUESTS.items()),
    Measurement(
        name="throughput-long-prompts",
        measure=partial(
            closed_loop, clients=LONG_CLIENTS, requests=LONG_CLIENTS, prompt=LONG_PROMPT, answer=LONG_ANSWER
        ),
        rounds=1,
    ),
)
