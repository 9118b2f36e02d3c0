"""The measurements with one server: prompts, tokens a second and gaps by clients, cancels alone and in company."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bench.gpu.asker import Asker
from bench.peers.running import RunningPeer
from pyllmcancel.bench.client import Call
from pyllmcancel.bench.exchange import Outcome

Figures = dict[str, Any]
ENDLESS = 4096  # tokens of an answer that is cut, or that keeps a slot busy
WAIT = 30.0  # seconds for a line of a log


class Lengths(NamedTuple):
    """Tokens of a short prompt, and of an answer to it that is read to its end."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement with one server; `seconds` are those that it takes at most on an H100, about."""

    name: str
    seconds: float
    measure: Callable[[Asker, RunningPeer], Awaitable[Figures]]


def prompt_part(n_prompt: int, trials: int) -> Part:
    """Time to the first token, and cancels at random moments of the prompt, of a server without other clients."""

    async def measure(asker: Asker, _server: RunningPeer) -> Figures:
        await asker.first_token(n_prompt)
        seconds = float(np.median([await asker.first_token(n_prompt) for _ in range(3)]))
        idle = []
        for _ in range(trials):
            closed = await asker.leave_prompt(n_prompt, asker.chance.uniform(0.1, 0.8) * seconds)
            idle.append(await asker.idle_after(closed))
        figures = {"tokens_per_second": n_prompt / seconds, "first_token_seconds": seconds}
        return figures | spread("cancel_in_prompt", idle)

    return Part(f"prompt of {n_prompt}", 10 + n_prompt / 1000 * (trials + 4) / 4, measure)


def answer_part(lengths: Lengths, trials: int) -> Part:
    """Cancels in an answer, of a server without other clients."""

    async def measure(asker: Asker, _server: RunningPeer) -> Figures:
        idle = []
        for _ in range(trials):
            call = asker.start(lengths.prompt, ENDLESS)
            await call.first_token()
            await asyncio.sleep(asker.chance.uniform(0.0, 0.1))
            idle.append(await asker.idle_after(call.cut()))
        return spread("cancel_in_answer", idle)

    return Part("cancels in an answer", 10 + trials, measure)


def rate_part(n_clients: int, lengths: Lengths) -> Part:
    """Tokens a second of clients that ask again when they are answered, and the gaps between a client's tokens."""

    async def measure(asker: Asker, _server: RunningPeer) -> Figures:
        n_requests = n_clients * (4 if n_clients < 32 else 2)
        remaining = iter(range(n_requests))
        calls: list[Call] = []

        async def client() -> None:
            for _ in remaining:
                calls.append(asker.start(*lengths))
                if (await calls[-1].ended()).outcome is not Outcome.OK:
                    raise RuntimeError(f"broken answer: {calls[-1].exchange.error}")

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(n_clients)))
        rate = n_requests * lengths.answer / (time.monotonic() - began)
        gaps = [later - earlier for call in calls for earlier, later in pairwise(call.exchange.token_at)]
        firsts = [call.exchange.token_at[0] - call.exchange.began_at for call in calls]
        return {"tokens_per_second": rate, **spread("gap", gaps), **spread("first_token", firsts)}

    return Part(f"{n_clients} clients", 10 + n_clients, measure)


def company_part(n_clients: int, n_prompt: int, lengths: Lengths, trials: int) -> Part:
    """Cancels of one more client, in its prompt and in its answer, beside `n_clients` that generate all the time.

    From the close to the line in the server's log that says that its slot is free, or its request ended.
    """

    async def measure(asker: Asker, server: RunningPeer) -> Figures:
        company = Company(asker, n_clients, lengths)
        try:
            await company.complete()
            call = asker.start(n_prompt, 8)
            await call.first_token()
            seconds = call.exchange.token_at[0] - call.exchange.began_at
            await call.ended()
            prompts, answers = [], []
            for _ in range(trials):
                await company.complete()
                closed = await asker.leave_prompt(n_prompt, asker.chance.uniform(0.1, 0.8) * seconds)
                prompts += await company.undisturbed(released_after(server, closed))
                await company.complete()
                call = asker.start(lengths.prompt, ENDLESS)
                await call.first_token()
                answers += await company.undisturbed(released_after(server, call.cut()))
        finally:
            company.leave()
            await asker.idle_after(time.monotonic())
        figures = {"first_token_seconds": seconds, "cancels": [len(prompts), len(answers)]}
        return figures | spread("cancel_in_prompt", prompts) | spread("cancel_in_answer", answers)

    return Part(f"cancels beside {n_clients}", 20 + trials * 3 + n_clients / 4, measure)


class Company:
    """Clients that generate all the time."""

    def __init__(self, asker: Asker, n_clients: int, lengths: Lengths) -> None:
        self._ask = partial(asker.start, lengths.prompt, ENDLESS)
        self._calls = [self._ask() for _ in range(n_clients)]

    async def complete(self) -> None:
        """Ask again where an answer is over, and wait until all generate."""
        self._calls = [self._ask() if call.is_over else call for call in self._calls]
        await asyncio.gather(*(call.first_token() for call in self._calls))

    async def undisturbed(self, measured: Awaitable[float]) -> list[float]:
        """Return what was measured, or nothing if one of these answers has ended meanwhile: the log says so as well."""
        found = await measured
        return [] if any(call.is_over for call in self._calls) else [found]

    def leave(self) -> None:
        for call in self._calls:
            call.cut()


async def released_after(server: RunningPeer, closed: float) -> float:
    words = server.peer.released or server.peer.left
    assert words is not None
    lines = await asyncio.to_thread(server.log.wait_for, words, closed, WAIT)
    if not lines:
        raise RuntimeError(f"{server.peer.name} says nothing of a client that left {WAIT:g} s ago")
    return lines[0][0] - closed


def again_part(n_clients: int, lengths: Lengths) -> Part:
    """The same questions twice, by clients that ask one after the other: tokens a second of each time."""

    async def measure(asker: Asker, _server: RunningPeer) -> Figures:
        prompts = [asker.prompt(lengths.prompt) for _ in range(n_clients)]
        rates = []
        for _ in range(2):
            began = time.monotonic()
            exchanges = await asyncio.gather(*(asker.begin(prompt, lengths.answer).ended() for prompt in prompts))
            if any(exchange.outcome is not Outcome.OK for exchange in exchanges):
                raise RuntimeError("broken answer")
            rates.append(n_clients * lengths.answer / (time.monotonic() - began))
        return {"tokens_per_second": rates[0], "again_tokens_per_second": rates[1]}

    return Part(f"{n_clients} clients, asked twice", 10 + n_clients, measure)


def spread(name: str, seconds: list[float]) -> Figures:
    if not seconds:
        return {}
    p50, p99 = np.percentile(seconds, [50, 99])
    return {f"{name}_p50_ms": p50 * 1e3, f"{name}_p99_ms": p99 * 1e3, f"{name}_max_ms": max(seconds) * 1e3}
