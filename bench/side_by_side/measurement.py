"""The parts of a measurement: a running peer, as its clients and the operating system see it."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.running import RunningPeer
from pyllmcancel.bench.client import Call, Target
from pyllmcancel.bench.server_truth import Stop, stopped_after
from pyllmcancel.bench.workbench import Workbench, open_workbench

Figures = dict[str, Any]
LONGEST_REQUEST = 300.0


@dataclass(frozen=True, slots=True)
class Bare:
    """The conditions of a program that is measured beside the servers: the same model, the same threads."""

    model: Path
    threads: int


class Subject:
    """A server under measurement."""

    def __init__(self, running: RunningPeer, bench: Workbench, *, effort: float, seed: int) -> None:
        self.running = running
        self.bench = bench
        self.client = bench.client
        self.start, self.settle = bench.start, bench.settle
        # A factor of repetitions and time budgets; 1 for figures that go into a report.
        self.effort = effort
        self.chance = random.Random(seed)  # the same for every peer of a round, so that all get the same delays
        self._n_prompts = 0

    @property
    def pid(self) -> int:
        return self.running.pid

    def times(self, count: int, at_least: int = 1) -> int:
        """How often something is to be done that is done `count` times with full effort."""
        return max(at_least, round(count * self.effort))

    def attempts(self, most: int, seconds: float, at_least: int = 3) -> Iterator[int]:
        """Count up to `most`, but begin no other one when the time is over, unless there are too few."""
        began = time.monotonic()
        for number in range(self.times(most, at_least)):
            if number >= at_least and time.monotonic() - began > seconds * self.effort:
                return
            yield number

    async def prompt(self, n_tokens: int) -> str:
        """A prompt that no other request of this server has had; the same ones for every peer of a round."""
        self._n_prompts += 1
        return self.bench.prompt(n_tokens, str(self._n_prompts))

    async def begin(self, n_prompt: int, max_tokens: int) -> Call:
        """Begin a request, and wait for its first token; RuntimeError if none comes."""
        call = self.start(await self.prompt(n_prompt), max_tokens)
        if not await call.first_token():
            raise RuntimeError(f"no first token: {call.exchange.error} {call.exchange.detail}")
        return call

    async def rest_after(self, moment: float) -> Stop:
        """How the server's process came to rest after a moment on the monotonic clock."""
        return await stopped_after(self.pid, moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Something that is measured of every peer."""

    name: str
    parallel: int = 4  # how the peer is started for it, as `ctx_size`
    ctx_size: int = 8192
    rounds: int = 2  # how often each peer has its turn
    # Takes a peer that has just been started and is at rest; ends with nothing in flight.
    measure: Callable[[Subject], Awaitable[Figures]]
    # Programs that are measured in the same turns as the peers, by name.
    others: Mapping[str, Callable[[Bare], Awaitable[Figures]]] = field(default_factory=dict)


@asynccontextmanager
async def subject_of(running: RunningPeer, *, effort: float, seed: int) -> AsyncIterator[Subject]:
    """The running peer, at rest. Clients open a connection for each request; AIPerf's keep them."""
    target = Target(
        url=running.url,
        model="",
        supersede_headers=running.peer.supersede_headers,
        timeout=LONGEST_REQUEST,
    )
    bench = await open_workbench(target, pid=running.pid, prompt_seed=f"side by side {seed}")
    await bench.settle()
    yield Subject(running, bench, effort=effort, seed=seed)
