"""A server of several models, as its clients, its log's reader and its operator see it."""

from __future__ import annotations

import asyncio
import re
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers import OURS, Settings
from bench.peers.running import free_port, running
from bench.scenarios.footprint import resident_mib
from bench.scenarios.harness import Server
from bench.scenarios.server_log import ServerLog

# The front's own lines.
LOADING = re.compile(r"^\S+ \w+ +pyllmcancel\.front: (\S+) is being loaded$")
LOADED = re.compile(r"^\S+ \w+ +pyllmcancel\.front: (\S+) is loaded after ([\d.]+) s$")
CANCELLED = re.compile(r"^\S+ \w+ +pyllmcancel\.front: the load of (\S+) is cancelled")
UNLOADED = re.compile(r"^\S+ \w+ +pyllmcancel\.front: (\S+) is unloaded$")
NOT_LOADED = "not loaded"
STATES = ((LOADING, "loading"), (LOADED, "loaded"), (CANCELLED, NOT_LOADED), (UNLOADED, NOT_LOADED))


class FrontLog(ServerLog):
    """The log of all processes, and the states of the models by the front's lines."""

    def __init__(self) -> None:
        super().__init__()
        self.states: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        self.load_seconds: list[float] = []

    def take(self, text: str, at: float) -> None:
        super().take(text, at)
        for line, state in STATES:
            if (found := line.search(text)) is not None:
                self.states[found[1]].append((at, state))
                if line is LOADED:
                    self.load_seconds.append(float(found[2]))

    def state(self, model: str, at: float) -> str:
        """Return the model's state at this time."""
        known = self.states[model]
        place = bisect_right(known, at, key=lambda one: one[0])
        return known[place - 1][1] if place else NOT_LOADED

    def count(self, line: re.Pattern[str]) -> int:
        return sum(line.search(text) is not None for text in self.others)


class FrontServer(Server):
    """A server of several models."""

    log: FrontLog

    async def models(self) -> dict[str, dict[str, Any]]:
        """The entries of all models, by their names."""
        return {one["id"]: one for one in (await self.client.fetch_json("GET", "/v1/models"))["data"]}

    async def status(self, model: str) -> str:
        found: str = (await self.models())[model]["status"]["value"]
        return found

    async def until_status(self, model: str, *values: str, seconds: float = 300.0) -> None:
        async with asyncio.timeout(seconds):
            while await self.status(model) not in values:  # noqa: ASYNC110 - a client has no event
                await asyncio.sleep(0.02)

    async def until_settled(self, seconds: float = 5.0) -> None:
        """Wait, for a moment, until the front knows that no model has a request: it asks once a second."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(one["waiting"] + one["running"] for one in (await self.models()).values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async def load(self, model: str) -> None:
        await self.client.fetch_json("POST", "/models/load", {"model": model})
        await self.until_status(model, "loaded")

    async def unload_all(self) -> None:
        for model in await self.models():
            await self.client.fetch_json("POST", "/models/unload", {"model": model})
            await self.until_status(model, "unloaded", "sleeping")

    def processes(self) -> dict[str, int]:
        """The processes of all models and replicas. The front is the only parent of theirs."""
        found = {}
        for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if b"--replica" in command:
                found[command[command.index(b"--replica") + 1].decode()] = int(pid)
        return found

    def resident(self) -> dict[str, float]:
        """MiB of each process; the front's under ``front``."""
        found = {"front": resident_mib(self.pid)}
        for model, pid in self.processes().items():
            try:
                found[model] = resident_mib(pid)
            except OSError:
                continue
        return found


@asynccontextmanager
async def serving(
    model: Path, names: list[str], *options: str, log: Path | None = None, threads: int = 1
) -> AsyncIterator[FrontServer]:
    """Start a server of copies of a model, wait until it is ready, and stop it at the end."""
    with TemporaryDirectory() as folder:
        for name in names:
            shutil.copyfile(model, Path(folder) / f"{name}.gguf")
        settings = Settings(
            model=model,
            port=free_port(),
            threads=threads,
            parallel=0,
            ctx_size=0,
            options=("--models-dir", folder, *options),
        )
        several = replace(OURS, command=lambda settings: without_model(OURS.command(settings)))
        lines = FrontLog()
        with running(several, settings, log, lines.listener()) as peer:
            yield FrontServer(peer, lines)
        await asyncio.sleep(0)  # until the last lines were taken


def without_model(command: list[str]) -> list[str]:
    at = command.index("--model")
    return command[:at] + command[at + 2 :]
