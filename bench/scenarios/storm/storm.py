"""Sixty-four clients of one server: hang-ups, cancels and superseding, beside requests that are not cut."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.scenarios.harness import Server
from bench.scenarios.storm.palette import Kind, Palette, generating, pooling
from bench.scenarios.storm.stage import Numbers, Stage, Visit
from bench.scenarios.storm.visits import SHARES, TOLD, Client
from bench.scenarios.storm.wire import Answer, Wire, ask, request_bytes

CLIENTS = 64
LONG_ENOUGH = 10.0  # seconds that a request to be cut takes at least: no client need wait for longer
WORKERS = 8  # of thread pools that grow when there is work for them: asyncio's, anyio's
SEVERAL = ("--parallel", "8", "--max-queue", "60", "--cache-ram", "32")


@dataclass(frozen=True, slots=True)
class Setting:
    """A server to storm, and which part of all requests it gets; `exact` if with an exact copy of the model."""

    name: str
    options: tuple[str, ...]
    palette: Callable[[random.Random, int], Palette]
    share: float
    exact: bool = False


# Answers can be compared where company alone does not change them, as with divided cells and the default attention.
# Unified cells lie where others left room, and a text's vector is computed beside others: there the model is an exact
# copy, in which the last bit of a sum decides nothing. There are fewer unified cells than all could use, so that some
# requests are preempted.
DIVIDED = (*SEVERAL, "--no-kv-unified")
EXACT = (*SEVERAL, "-ctk", "f32", "-ctv", "f32", "--flash-attn", "off")
SETTINGS = (
    Setting("divided cells", DIVIDED, generating, 0.45),
    Setting("unified cells", (*EXACT, "--kv-unified", "--ctx-size", "6144"), generating, 0.45, exact=True),
    Setting("embeddings", (*EXACT, "--pooling", "mean"), pooling, 0.1, exact=True),
)


class Storm:
    """Visits to one server. The event loop that made it stays free, to read the server's log."""

    def __init__(self, server: Server, setting: Setting, seed: int, *, client: type[Client] = Client) -> None:
        self._client = client
        self._seed = f"{setting.name} {seed}"
        palette = setting.palette(random.Random(self._seed), server.n_ctx)
        port = int(server.url.rpartition(":")[2])
        self._known: dict[tuple[str, str], Answer] = {}
        self._stage = Stage(port, palette, self._known, setting.name.split()[0], Numbers())
        self._waves = itertools.count()

    @property
    def stage(self) -> Stage:
        return self._stage

    async def learn(self) -> int:
        """Have every question answered alone; how many there are."""
        questions = self._stage.palette.questions()
        await asyncio.to_thread(self._learn, questions)
        return len(questions)

    def _learn(self, questions: Sequence[tuple[Kind, str]]) -> None:
        for kind, prompt in questions:
            reply = ask(self._stage.port, kind.path, kind.ask(prompt))
            if not reply.complete:
                raise RuntimeError(f"{kind.name}, alone: status {reply.status}, {reply.payloads or reply.text}")
            self._known[kind.name, prompt] = Answer.of(reply)
        self._stage.lasting = min(self._endless_seconds(known=known) for known in (True, False))

    def _endless_seconds(self, *, known: bool) -> float:
        """Return the time that the shortest of the requests to be cut takes alone, or `LONG_ENOUGH`."""
        palette = self._stage.palette
        kind = palette.endless[0]
        known = known and kind in palette.kinds
        prompt = min(palette.prompts if known else palette.long_prompts, key=len)
        began = time.monotonic()
        whole = {"stream": False} if kind.stream else {}
        with Wire(self._stage.port) as wire:
            wire.send(request_bytes(kind.path, {**kind.ask_endless(prompt, known=known), **whole}))
            wire.answered(LONG_ENOUGH)
        return time.monotonic() - began

    async def calm(self, n_requests: int, clients: int = CLIENTS) -> list[Visit]:
        """No cancels: whether company alone changes a text."""
        return await self.wave(n_requests, clients, {"stays": 1})

    async def rage(self, n_requests: int, clients: int = CLIENTS) -> list[Visit]:
        """Visits of every way, about `n_requests` of them."""
        shares = SHARES if self._stage.palette.telling else {way: SHARES[way] for way in SHARES if way not in TOLD}
        return await self.wave(n_requests, clients, shares)

    async def wave(self, n_requests: int, clients: int, shares: Mapping[str, int]) -> list[Visit]:
        """Visits of the ways with these shares, about `n_requests` of them."""
        wave = next(self._waves)
        chance = random.Random(f"{self._seed} {wave}")
        ways = iter(chance.choices(list(shares), list(shares.values()), k=n_requests))
        lock = threading.Lock()
        visits: list[Visit] = []

        def work(number: int) -> None:
            client = self._client(self._stage, f"{self._seed} {wave} {number}")
            while True:
                with lock:
                    way = next(ways, None) if len(visits) < n_requests else None
                if way is None:
                    return
                made = client.visit(way)
                with lock:
                    visits.extend(made)

        with ThreadPoolExecutor(clients) as pool:
            await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(pool, work, i) for i in range(clients)))
        return visits
