"""pyllmcancel beside llama-server, each with the same physical batch: cancels in prefill, and tokens a second."""

from __future__ import annotations

import asyncio
import itertools
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
from pyllmcancel.bench.client import Call, Client
from pyllmcancel.bench.exchange import Ask, Outcome, Target

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


def subjects(chunks: Sequence[int]) -> Iterator[Subject]:
    for chunk in chunks:
        yield Subject(OURS, chunk, threads=0)
        yield Subject(LLAMA_SERVER, chunk, threads=-1, options=("--slots", "--cache-ram", "0"))


def measure(options: Namespace) -> Iterator[Row]:
    log = options.out / "servers.log"
    for subject in subjects(options.chunks):
        with running(subject.peer, subject.settings(options, 1, max(options.prompts) + 512), log) as server:
            yield from asyncio.run(cancels(Asker(server, seed=3), subject.name, options))
    most = max(options.clients)
    for number in range(options.rounds):
        for subject in subjects(options.chunks[:1]):
            settings = subject.settings(options, most, most * (SHORT_PROMPT + ANSWER + 28))
            with running(subject.peer, settings, log) as server:
                for clients, rate in asyncio.run(throughput(Asker(server, seed=5), options.clients)):
                    about = {"what": "throughput", "round": number, "server": subject.name}
                    yield about | {"clients": clients, "tokens_per_second": rate}


class Asker:
    """Asks a server with prompts of random tokens, of which no server has any in its cache."""

    def __init__(self, server: RunningPeer, seed: int) -> None:
        self.client = Client(Target(url=server.url))
        self.chance = random.Random(seed)
        self._numbers = itertools.count()
        self._n_vocab = 0

    async def learn_vocabulary(self) -> None:
        meta = (await self.client.fetch_json("GET", "/v1/models"))["data"][0]["meta"]
        self._n_vocab = min(meta["n_vocab"], 50_000)

    def prompt(self, n_tokens: int) -> list[int]:
        return [self.chance.randrange(100, self._n_vocab) for _ in range(n_tokens)]

    def begin(self, prompt: list[int], max_tokens: int) -> Call:
        return self.client.start(Ask(prompt=prompt, max_tokens=max_tokens, request_id=f"gpu-{next(self._numbers)}"))

    def start(self, n_prompt: int, max_tokens: int) -> Call:
        return self.begin(self.prompt(n_prompt), max_tokens)

    async def first_token(self, n_prompt: int, max_tokens: int = 1) -> float:
        """Seconds to the first token's text, or the end where it has none; the rest is read as well."""
        exchange = await self.start(n_prompt, max_tokens).ended()
        if exchange.outcome is not Outcome.OK or exchange.ended_at is None:
            raise RuntimeError(f"broken answer: {exchange.error} {exchange.detail}")
        return (exchange.token_at or [exchange.ended_at])[0] - exchange.began_at

    async def leave_prompt(self, n_prompt: int, seconds: float) -> float:
        """Close a request while its prompt is computed; the time of the close."""
        call = self.start(n_prompt, 8)
        await call.sent()
        await asyncio.sleep(seconds)
        return call.cut()

    async def idle_after(self, closed: float) -> float:
        """Seconds from the close until no slot is at work; asked by HTTP, the only way that both servers have."""
        while True:  # each question is a connection, which takes long enough
            slots = await self.client.fetch_json("GET", "/slots")
            if not any(slot["is_processing"] for slot in slots):
                return time.monotonic() - closed


async def cancels(asker: Asker, name: str, options: Namespace) -> list[Row]:
    """Clients that close at random moments of their prompts.

    Half of them: until the server says that it is idle. The others: how much later than alone a client that comes with
    the close has its first token.
    """
    rows = []
    await asker.learn_vocabulary()
    for n_prompt in options.prompts:
        await asker.first_token(n_prompt)
        seconds = await asker.first_token(n_prompt)
        alone = statistics.median([await asker.first_token(16) for _ in range(5)])
        idle, follow = [], []
        # A long one takes as long as many.
        for _ in range(max(5, options.trials * options.prompts[0] // n_prompt)):
            moments = [asker.chance.uniform(0.1, 0.8) * seconds for _ in range(2)]
            idle.append(await asker.idle_after(await asker.leave_prompt(n_prompt, moments[0])))
            await asker.leave_prompt(n_prompt, moments[1])
            follow.append(await asker.first_token(16) - alone)
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


async def throughput(asker: Asker, counts: Sequence[int]) -> list[tuple[int, float]]:
    """Return tokens a second of `n` clients, each of which asks again when it is answered."""
    rates = []
    await asker.learn_vocabulary()
    await asker.first_token(SHORT_PROMPT, ANSWER)
    for clients in counts:
        n_requests = clients * (4 if clients < 32 else 2)
        remaining = iter(range(n_requests))

        async def client(remaining: Iterator[int] = remaining) -> None:
            for _ in remaining:
                await asker.first_token(SHORT_PROMPT, ANSWER)

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(clients)))
        rates.append((clients, n_requests * ANSWER / (time.monotonic() - began)))
    return rates
