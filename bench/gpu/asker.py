"""A client of a server under measurement, whose prompts are random tokens."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

from bench.peers.running import RunningPeer
from pyllmcancel.bench.client import Call, Client
from pyllmcancel.bench.exchange import Ask, Outcome, Target


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
