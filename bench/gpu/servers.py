"""pyllmcancel beside llama-server, each with the same physical batch: cancels in prefill, and tokens a second."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.peers import LLAMA_SERVER, OURS, Peer, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.scenarios.http_client import Call

Row = dict[str, Any]
ANSWER = 128
SHORT_PROMPT = 100


@dataclass(frozen=True, slots=True)
class Subject:
    """A server and its tokens a step, with what its own choice of threads is called, and further options."""

    peer: Peer
    chunk: int
    threads: int
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.peer.name} -ub {self.chunk}"

    def settings(self, options: Namespace, parallel: int, ctx_size: int) -> Settings:
        more = ("--gpu-layers", str(options.gpu_layers), "--ubatch-size", str(self.chunk), *self.options)
        return Settings(
            model=options.model,
            port=free_port(),
            threads=self.threads,
            parallel=parallel,
            ctx_size=ctx_size,
            options=more,
        )


def subjects(chunks: Sequence[int]) -> list[Subject]:
    return [
        subject
        for chunk in chunks
        for subject in (
            Subject(OURS, chunk, threads=0),
            Subject(LLAMA_SERVER, chunk, threads=-1, options=("--slots", "--cache-ram", "0")),
        )
    ]


def measure(options: Namespace) -> Iterator[Row]:
    log = options.out / "servers.log"
    for subject in subjects(options.chunks):
        with running(subject.peer, subject.settings(options, 1, max(options.prompts) + 512), log) as server:
            yield from asyncio.run(cancels(server, subject.name, options))
    most = max(options.clients)
    for number in range(options.rounds):
        for subject in subjects(options.chunks[:1]):
            settings = subject.settings(options, most, most * (SHORT_PROMPT + ANSWER + 28))
            with running(subject.peer, settings, log) as server:
                for clients, rate in asyncio.run(throughput(server, options.clients)):
                    about = {"what": "throughput", "round": number, "server": subject.name}
                    yield about | {"clients": clients, "tokens_per_second": rate}


def completion(chance: random.Random, n_prompt: int, max_tokens: int) -> Row:
    """A prompt of its own: no server has any of it in its cache."""
    prompt = [chance.randrange(100, 50_000) for _ in range(n_prompt)]
    common = {"stream": True, "ignore_eos": True, "temperature": 0.0}
    return {"prompt": prompt, "max_tokens": max_tokens, **common}


async def first_token(server: RunningPeer, body: Row) -> float:
    """Seconds to the first event of a stream; the rest is read as well."""
    began = time.monotonic()
    call = await Call.send(server.url, "/v1/completions", body)
    first = await call.first_event()
    answer = await call.answer
    if not answer.done:
        raise RuntimeError(f"broken answer: {answer.payloads[-1:]}")
    return first.at - began


async def leave_prompt(server: RunningPeer, body: Row, seconds: float) -> float:
    """Close a request while its prompt is computed; the time of the close."""
    call = await Call.send(server.url, "/v1/completions", body)
    await asyncio.sleep(seconds)
    return call.leave()


async def idle_after(server: RunningPeer, closed: float) -> float:
    """Seconds from the close until no slot is at work any more; asked by HTTP, the only way that both servers have."""
    while True:  # each question is a connection, which takes long enough
        slots = (await (await Call.send(server.url, "/slots", method="GET")).answer).body
        if not any(slot["is_processing"] for slot in slots):
            return time.monotonic() - closed


async def cancels(server: RunningPeer, name: str, options: Namespace) -> list[Row]:
    """Clients that close at random moments of their prompts.

    Half of them: until the server says that it is idle. The others: how much later than alone a client that comes with
    the close has its first token.
    """
    rows = []
    chance = random.Random(3)
    for n_prompt in options.prompts:
        await first_token(server, completion(chance, n_prompt, 1))
        seconds = await first_token(server, completion(chance, n_prompt, 1))
        alone = statistics.median([await first_token(server, completion(chance, 16, 1)) for _ in range(5)])
        idle, follow = [], []

        async def leave(n_prompt: int = n_prompt, seconds: float = seconds) -> float:
            body = completion(chance, n_prompt, 8)
            return await leave_prompt(server, body, chance.uniform(0.1, 0.8) * seconds)

        # A long one takes as long as many.
        for _ in range(max(5, options.trials * options.prompts[0] // n_prompt)):
            idle.append(await idle_after(server, await leave()))
            await leave()
            follow.append(await first_token(server, completion(chance, 16, 1)) - alone)
        rows.append(
            {"what": "client's close", "server": name, "prompt": n_prompt, "prefill_seconds": seconds}
            | spread("idle", idle)
            | spread("next_first_token_later_by", follow)
            | {"cancels": 2 * len(idle)}
        )
    return rows


def spread(name: str, seconds: list[float]) -> Row:
    p50, p99 = np.percentile(seconds, [50, 99])
    return {f"{name}_p50_ms": p50 * 1e3, f"{name}_p99_ms": p99 * 1e3}


async def throughput(server: RunningPeer, counts: Sequence[int]) -> list[tuple[int, float]]:
    """Tokens a second of so many clients, each of which asks again when it is answered."""
    rates = []
    chance = random.Random(5)
    await first_token(server, completion(chance, SHORT_PROMPT, ANSWER))
    for clients in counts:
        n_requests = clients * (4 if clients < 32 else 2)
        bodies = iter([completion(chance, SHORT_PROMPT, ANSWER) for _ in range(n_requests)])

        async def client(bodies: Iterator[Row] = bodies) -> None:
            for body in bodies:
                await first_token(server, body)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(clients)))
        rates.append((clients, n_requests * ANSWER / (time.monotonic() - began)))
    return rates
