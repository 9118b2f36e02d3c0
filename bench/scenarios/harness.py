"""A running server for a scenario: its log by request, its metrics, and its reports on its requests."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.peers import OURS, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.scenarios.server_log import ServerLog
from pyllmcancel.bench.client import Client
from pyllmcancel.bench.exchange import Target


class Server:
    """A running server as its clients, its log's reader and its operator see it."""

    def __init__(self, peer: RunningPeer, log: ServerLog) -> None:
        self.process = peer.process
        self.url = peer.url
        self.log = log
        self.client = Client(Target(url=peer.url))
        self.n_ctx = self.n_vocab = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    async def learn_facts(self) -> None:
        meta = (await self.client.fetch_json("GET", "/v1/models"))["data"][0]["meta"]
        self.n_ctx, self.n_vocab = meta["n_ctx"], meta["n_vocab"]

    async def count(self, *statuses: str) -> int:
        """How many requests have one of these statuses."""
        listed = (await self.client.fetch_json("GET", "/v1/requests"))["data"]
        return sum(entry["status"] in statuses for entry in listed)

    async def metrics(self) -> dict[str, float]:
        """Samples by name; of those with labels the sum."""
        found: dict[str, float] = defaultdict(float)
        for sample in await self._samples():
            found[sample.name.removeprefix("pyllmcancel_")] += sample.value
        return found

    async def labelled(self, name: str, label: str) -> dict[str | None, float]:
        """Samples of one metric, by one of its labels."""
        found: dict[str | None, float] = defaultdict(float)
        for sample in await self._samples():
            if sample.name == f"pyllmcancel_{name}":
                found[sample.labels[label]] += sample.value
        return found

    async def _samples(self) -> list[Sample]:
        _, content = await self.client.fetch("GET", "/metrics")
        return [sample for family in text_string_to_metric_families(content.decode()) for sample in family.samples]

    async def until_idle(self, seconds: float = 60.0) -> None:
        """Wait until no request lives."""
        async with asyncio.timeout(seconds):
            while await self.count("waiting", "running", "cancelling"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How a scenario is to be run."""

    model: Path
    threads: int = 0  # compute threads of the server; 0: one per core
    ctx_size: int = 0  # cells of the server's context; 0: the server's own choice
    runs: int | None = None  # repetitions; None for the scenario's own number
    seed: int = 1
    log: Path | None = None  # file to which the servers' logs are appended
    seconds: float = 3600.0  # how long a soak lasts
    plots: Path | None = None  # folder for pictures; None for none

    @asynccontextmanager
    async def server(self, *options: str) -> AsyncIterator[Server]:
        """Start a server, wait until it is ready, and stop it at the end."""
        log = ServerLog()
        with TemporaryDirectory() as folder:
            # Not the user's own store of responses, which another server may have.
            settings = Settings(
                model=self.model,
                port=free_port(),
                threads=self.threads,
                parallel=0,
                ctx_size=self.ctx_size,
                options=("--store", f"{folder}/responses.db", *options),
            )
            # Blocks the event loop while the server starts and ends: nothing else is under way then.
            with running(OURS, settings, self.log, log.listener()) as peer:
                server = Server(peer, log)
                await server.learn_facts()
                yield server
        await asyncio.sleep(0)  # until the last lines were taken
