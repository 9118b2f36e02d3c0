"""Clients in a closed loop: tokens a second, first tokens and gaps at 1, 4 and 8, and where a part of them hangs up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.peers.programs import run_llama_tool
from bench.side_by_side.measurement import Bare, Figures, Measurement, Subject
from pyllmcancel.bench.client import Exchange, Outcome
from pyllmcancel.bench.load import planned_cuts, run_closed_loop
from pyllmcancel.bench.server_truth import cpu_seconds

PROMPT, ANSWER = 100, 40
LONG_PROMPT, LONG_ANSWER, LONG_CLIENTS = 800, 24, 4
# Turns per number of clients: those of one client are the shortest, and a machine's pace changes within seconds.
ROUNDS = {1: 9, 4: 5, 8: 5}
# Requests per number of clients: four for each, so that what is slow at the beginning and at the end counts little.
REQUESTS = {1: 4, 4: 16, 8: 32}
# Shares of the requests, in per cent, whose clients hang up, and the seconds from sending to the hang-up.
PERCENTS = (0, 10, 30, 50)
LEAVE_AFTER = 1.0


async def measure(
    subject: Subject, *, clients: int, requests: int, prompt: int = PROMPT, answer: int = ANSWER, percent: float = 0.0
) -> Figures:
    """Tokens a second, first tokens and gaps of clients in a closed loop; a part may hang up."""
    plan = await planned(subject, max(clients, subject.times(requests)), percent, prompt)
    exchanges: list[Exchange] = []

    async def make(number: int) -> None:
        text, cut_after = plan[number]
        call = subject.start(text, answer, cut_after=cut_after)
        exchanges.append(await call.ended())

    await subject.settle()
    began, used = time.monotonic(), cpu_seconds(subject.pid)
    await run_closed_loop(len(plan), clients, make)
    figures = speed_figures(exchanges, time.monotonic() - began)
    await subject.settle()
    cancelled = sum(entry.outcome is Outcome.CANCELLED for entry in exchanges)
    return figures | {"cancelled": cancelled, "cpu_seconds": cpu_seconds(subject.pid) - used}


async def measure_waste(subject: Subject) -> Figures:
    """CPU time used after each hang-up until the server rests, over all that it used.

    One client, so that all that is computed after a hang-up is wasted: the server's own account is not needed.
    """
    plan = await planned(subject, subject.times(10, 4), 50, 200)
    await subject.settle()
    used, wasted, n_cancelled = cpu_seconds(subject.pid), 0.0, 0
    for text, cut_after in plan:
        call = subject.start(text, ANSWER, cut_after=cut_after)
        exchange = await call.ended()
        if exchange.outcome is Outcome.CANCELLED and exchange.ended_at is not None:
            wasted += (await subject.rest_after(exchange.ended_at)).cpu_seconds
            n_cancelled += 1
    total = cpu_seconds(subject.pid) - used
    return {"cancelled": n_cancelled, "requests": len(plan), "cpu_seconds": total, "cpu_after_leaving": wasted}


async def planned(subject: Subject, requests: int, percent: float, prompt: int) -> list[tuple[str, float | None]]:
    """The prompts, and the seconds after which their clients hang up."""
    cuts = planned_cuts(requests, percent, (LEAVE_AFTER, LEAVE_AFTER))
    return [(await subject.prompt(prompt), cut_after) for cut_after in cuts]


def speed_figures(exchanges: Sequence[Exchange], seconds: float) -> Figures:
    """Return the figures of complete answers only; ITL is each single gap between two tokens, TPOT an answer's mean.

    `Exchange.token_at` has a time for each event with text, not for each token. An event that carries several tokens,
    be they parts of one character, counts the gap before it once and zero for its other tokens. Which event that was is
    not known: the zeros are for as many tokens as the answer has more than events.
    """
    answered = [entry for entry in exchanges if entry.outcome is Outcome.OK]
    tokens = sum(entry.n_tokens for entry in answered)
    return {
        "requests": len(exchanges),
        "errors": sum(entry.outcome is Outcome.ERROR for entry in exchanges),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "ttft": [entry.ttft for entry in answered if entry.ttft is not None],
        "itl": [gap for entry in answered if entry.token_at for gap in token_gaps(entry)],
        "tpot": [time_per_token(entry) for entry in answered if entry.n_tokens > 1 and entry.token_at],
    }


def token_gaps(exchange: Exchange) -> list[float]:
    return exchange.itl + [0.0] * (exchange.n_tokens - len(exchange.token_at))


def time_per_token(exchange: Exchange) -> float:
    return (exchange.token_at[-1] - exchange.token_at[0]) / (exchange.n_tokens - 1)


async def batched_bench(bare: Bare, *, n_prompt: int, n_answer: int, batch: int) -> Figures:
    """llama.cpp's own measure of the same batch, without a server: all prompts at once, nothing sampled."""
    threads = ("--threads", bare.threads, "--threads-batch", bare.threads)
    sizes = ("--ctx-size", batch * (n_prompt + n_answer), "-npp", n_prompt, "-ntg", n_answer, "-npl", batch)
    arguments = ("--model", bare.model, *threads, *sizes, "--output-format", "jsonl")
    (row,) = await asyncio.to_thread(run_llama_tool, "llama-batched-bench", *arguments)
    return batch_figures(row)


def batch_figures(row: dict[str, Any]) -> Figures:
    """Answers' tokens over the whole time, and over that of generating alone."""
    tokens = row["pl"] * row["tg"]
    return {"tokens_per_second": tokens / row["t"], "decode_per_second": tokens / row["t_tg"], "seconds": row["t"]}


MEASUREMENTS = (
    *(
        Measurement(
            name=f"throughput-{clients}",
            parallel=max(REQUESTS),
            rounds=ROUNDS[clients],
            measure=partial(measure, clients=clients, requests=requests),
            others={"llama-batched-bench": partial(batched_bench, n_prompt=PROMPT, n_answer=ANSWER, batch=clients)},
        )
        for clients, requests in REQUESTS.items()
    ),
    Measurement(
        name="throughput-long-prompts",
        measure=partial(measure, clients=LONG_CLIENTS, requests=LONG_CLIENTS, prompt=LONG_PROMPT, answer=LONG_ANSWER),
        rounds=1,
    ),
    *(
        Measurement(
            name=f"goodput-{percent}",
            parallel=8,
            rounds=5,
            measure=partial(measure, clients=8, requests=24, percent=percent),
        )
        for percent in PERCENTS
    ),
    Measurement(name="cpu-after-leaving", measure=measure_waste, rounds=1),
)
